"use strict";
const {rows, opacities, values, words, position, warm} =
  JSON.parse(document.getElementById("data").textContent);
const spans = [...document.querySelectorAll("#tokens span")];
let kept = position;
function show(i) {
  const k = rows.indexOf(i);
  if (k < 0) return;
  spans.forEach((span, j) => {
    span.style.background = `rgba(${warm}, ${opacities[k][j]})`;
    span.className = j === i ? "chosen" : j > i ? "later" : "";
    span.title = `position ${j}: ${values[k][j]}`;
  });
  document.getElementById("said").textContent = words[k];
}
spans.forEach((span, i) => {
  if (!span.hasAttribute("tabindex")) return;
  span.addEventListener("pointerenter", () => show(i));
  span.addEventListener("focus", () => show(i));
  span.addEventListener("click", () => { kept = i; show(i); });
});
document.getElementById("tokens").addEventListener("pointerleave", () => show(kept));
