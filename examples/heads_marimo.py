# Heads at work, in marimo: first `headwise demo --toy`, then `marimo edit examples/heads_marimo.py`.
import marimo

app = marimo.App()


@app.cell
def _():
    import headwise as hw
    from headwise.data.embedded import pairs

    model = hw.load("runs/toy")
    text = hw.ParallelText.from_pairs(pairs("dev", 50))
    model
    return hw, model, text


@app.cell
def _(hw, model, text):
    scores = hw.score(model, text, ["confidence", "gradient"])
    scores.table.pivot_table(index=["kind", "layer", "head"], columns="measure", values="value")
    return


@app.cell
def _(hw, model, text):
    kinds = list(model.heads.kinds)
    smaller = hw.prune(
        model, text, hw.Greedy(keep=model.heads.total // 2, kinds=kinds, measure="gradient")
    )
    smaller.layout
    return


@app.cell
def _(hw, model):
    hw.lab(model, "The girls are famous.")
    return


if __name__ == "__main__":
    app.run()
