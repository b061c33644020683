"""Trains tokenizer.json of models/tiny: byte-level BPE over the text of the tasks, and the ten reserved ids."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.prompts import training_tasks  # noqa: E402
from gapless_tools.scenes import make_scene  # noqa: E402
from gapless_tools.vocabulary import COLOURS, FOREIGN, KINDS, WORDS  # noqa: E402

RESERVED = (
    "<|endoftext|>",
    "<|separator_1|>",
    "<|separator_2|>",
    "<|separator_3|>",
    "<|thinking|>",
    "<|coord|>",
    "<|size|>",
    "<|start_ground_points|>",
    "<|reserved_8|>",
    "<|end_ground|>",
)

# Words that people use and the tasks do not, so that other text is not cut into single bytes.
COMMON = (
    "the of and to in is it you that he was for on are with as at be this have from or one had by but not what all "
    "were we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like him into time has look two more write see way could people my than first "
    "water been call who now find long down day did get come made may part describe image photo query caption detect point"
    + 15 * " query caption detect point short normal long"
)


def corpus(num_scenes: int, seed: int) -> list[str]:
    texts = []
    for index in range(num_scenes):
        _, scene = make_scene(seed, index)
        for task in training_tasks(random.Random(index), scene, 6):
            if task.skill != "caption":
                texts.append(task.argument if task.skill == "query" else " " + task.argument)
            texts.append(task.answer)
    words = list(WORDS) + list(FOREIGN) + list(COLOURS) + list(KINDS)
    return texts + 12 * (words + [" " + word for word in words]) + 3 * [COMMON]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=768)
    parser.add_argument("--num-scenes", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=101)
    args = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab_size,
        special_tokens=[AddedToken(name, special=True) for name in RESERVED],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(args.num_scenes, args.seed), trainer)
    assert [tokenizer.token_to_id(name) for name in RESERVED] == list(range(10))
    tokenizer.save(str(args.out))
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
