"""Image-text retrieval both ways from one similarity matrix, where "relevant" decides the number.

    python examples/recipe_cross_modal.py

Each image has five captions, as in Flickr30k and COCO Captions. Under pair relevance only its own captions are relevant
to an image (R = 5), and only its own image to a caption (R = 1, so that AP is the reciprocal rank). Cross-modal hashing
papers (DCMH and its followers) count every item that shares a category instead. The model below knows categories well
and single images badly, so its two numbers are far apart: neither can be compared with the other, nor read without the
level of chance.

EmbeddingMAPAtK ranks the vectors themselves, with the ids of the pairs as labels, and never holds the matrix. It
normalises them in float64 and rounds their entries to multiples of 2^-26, which makes its products exact. mAP depends
only on the order of the similarities, so the two ways can differ only where two similarities of one query lie within
about 1e-7 of each other.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from map_metrics import EmbeddingMAPAtK, RetrievalMAP

IMAGES, CAPTIONS, CATEGORIES, DIMS = 200, 5, 10, 32


def encoders(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors of images and captions: the category, what this one image shows, and noise; the categories."""
    rng = torch.Generator().manual_seed(seed)
    category = torch.arange(IMAGES) % CATEGORIES
    scene = 2 * torch.randn(CATEGORIES, DIMS, generator=rng)[category] + torch.randn(IMAGES, DIMS, generator=rng)
    images = scene + 1.5 * torch.randn(IMAGES, DIMS, generator=rng)
    captions = scene.repeat_interleave(CAPTIONS, 0) + 2.5 * torch.randn(IMAGES * CAPTIONS, DIMS, generator=rng)
    return normalize(images), normalize(captions), category


def from_matrix(similarity: Tensor, relevant: Tensor) -> tuple[float, float]:
    """The mAP, and that of a random order."""
    metric = RetrievalMAP()
    metric.update(similarity, relevant)
    result = metric.result()
    return float(result.value()), float(result.chance)


def from_vectors(queries: Tensor, query_pair: Tensor, gallery: Tensor, gallery_pair: Tensor) -> float:
    """The mAP of the vectors, by cosine similarity."""
    metric = EmbeddingMAPAtK()
    metric.update(queries, query_pair, query=True)
    metric.update(gallery, gallery_pair, query=False)
    return float(metric.compute())


def main() -> dict[str, float]:
    images, captions, category = encoders()
    pair = torch.arange(IMAGES)
    caption_pair, caption_category = pair.repeat_interleave(CAPTIONS), category.repeat_interleave(CAPTIONS)
    own, alike = pair[:, None] == caption_pair, category[:, None] == caption_category
    similarity = images.double() @ captions.double().T  # (200, 1000); its transpose is the other direction
    directions = {"image -> text": (similarity, own, alike), "text -> image": (similarity.T, own.T, alike.T)}

    values = {}
    print(f"{'':<35} {'mAP':>8} {'chance':>8}")
    for direction, (scores, *targets) in directions.items():
        for relevance, target in zip(("pair", "category"), targets, strict=True):
            row = f"{direction}, {relevance} relevance"
            values[row], values[f"{row}, chance"] = from_matrix(scores, target)
            print(f"{row:<35} {values[row]:8.6f} {values[f'{row}, chance']:8.6f}")
    embeddings = {
        "image -> text, pair, embeddings": from_vectors(images, pair, captions, caption_pair),
        "text -> image, pair, embeddings": from_vectors(captions, caption_pair, images, pair),
    }
    for row, value in embeddings.items():
        print(f"{row:<35} {value:8.6f}")
    return values | embeddings


if __name__ == "__main__":
    main()
