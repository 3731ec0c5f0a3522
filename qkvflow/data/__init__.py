"""What a model reads: corpora, tokenizers, batches, evaluation windows and n-gram baselines.

Pure Python and numpy. `tokenizers`, `datasets` and `rich` are imported only where they are used.

    corpus = load_corpus("embedded")
    dataset = prepare(corpus, make_tokenizer("char", corpus), "cache")
    inputs, targets = batch_at(
        dataset["train"].ids, digest=dataset.digest, seed=0, step=0, batch_size=8, length=128
    )
"""

from qkvflow.data.addition import Addition as Addition
from qkvflow.data.answers import Accuracy as Accuracy
from qkvflow.data.answers import Answers as Answers
from qkvflow.data.answers import Questions as Questions
from qkvflow.data.batches import batch_at as batch_at
from qkvflow.data.batches import never_targets as never_targets
from qkvflow.data.batches import windows_per_epoch as windows_per_epoch
from qkvflow.data.bpe import BPETokenizer as BPETokenizer
from qkvflow.data.bpe import make_tokenizer as make_tokenizer
from qkvflow.data.bpe import read_tokenizer_files as read_tokenizer_files
from qkvflow.data.cache import default_cache_dir as default_cache_dir
from qkvflow.data.corpora import CORPORA as CORPORA
from qkvflow.data.corpora import load_corpus as load_corpus
from qkvflow.data.corpus import SPLITS as SPLITS
from qkvflow.data.corpus import TextDocument as TextDocument
from qkvflow.data.corpus import make_corpus as make_corpus
from qkvflow.data.embedded import embedded_corpus as embedded_corpus
from qkvflow.data.errors import DataError as DataError
from qkvflow.data.evaluation import eval_windows as eval_windows
from qkvflow.data.hops import Hops as Hops
from qkvflow.data.hub import hub_corpus as hub_corpus
from qkvflow.data.markov import MarkovLanguage as MarkovLanguage
from qkvflow.data.ngram import NGramModel as NGramModel
from qkvflow.data.prepare import TokenDataset as TokenDataset
from qkvflow.data.prepare import TokenSplit as TokenSplit
from qkvflow.data.prepare import coverage_note as coverage_note
from qkvflow.data.prepare import open_dataset as open_dataset
from qkvflow.data.prepare import prepare as prepare
from qkvflow.data.tokenizer import ByteTokenizer as ByteTokenizer
from qkvflow.data.tokenizer import CharTokenizer as CharTokenizer
from qkvflow.data.tokenizer import Tokenizer as Tokenizer
from qkvflow.data.tokenizer import tokenizer_from_dict as tokenizer_from_dict
from qkvflow.data.wikitext import wikitext as wikitext
