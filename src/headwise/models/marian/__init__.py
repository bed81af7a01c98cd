"""Models of Marian, the C++ toolkit, as models of transformers: `network` is the model, `names` what its weights are
called on both sides, `folder` reads a folder of Marian."""
