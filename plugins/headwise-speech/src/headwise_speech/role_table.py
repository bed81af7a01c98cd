"""The role tests of speech. Needs no torch."""

from __future__ import annotations

from headwise.roles.role import RoleTest, role

role.add(
    RoleTest(
        name="diagonal",
        home=("headwise_speech.sound", "diagonal"),
        data=("speech",),
        kinds=("encoder-self",),
        threshold=0.9,
        weaker_than="positional",
        expected={},
        baseline="a random frame",
        untrained="the baseline",
        caption="share of sound frames with argmax A_h[q, ·] at most 2 frames (40 ms) from q; not of heads at one offset",
        source="Yang et al. 2020",
        order=15,
        example=None,
    )
)
role.add(
    RoleTest(
        name="spoken-word",
        home=("headwise_speech.sound", "spoken_word"),
        data=("speech",),
        kinds=("cross",),
        margin=0.10,
        baseline="an even pace, best shift",
        caption="share of tokens whose writing position points at a frame of their word",
        display="alignment",
        order=16,
        example=None,
    )
)
