//! Layers of the networks, in double precision without libraries: windows are short and layers small.

/// Weights of an LSTM with forget gates (Hochreiter and Schmidhuber, Long short-term memory, 1997; Gers et al., Learning to
/// forget, 2000). Rows are those of the gates i, f, g, o, each for all cells.
#[derive(Debug)]
pub(super) struct LstmLayer {
    /// Inputs of a step.
    pub(super) inputs: usize,
    /// Number of cells, each with one output, at most 64.
    pub(super) cells: usize,
    /// Weights of the inputs: 4 × cells rows.
    pub(super) input: Vec<f64>,
    /// Weights of the outputs of the step before: 4 × cells rows.
    pub(super) recurrent: Vec<f64>,
    /// Bias of each row.
    pub(super) bias: Vec<f64>,
}

impl LstmLayer {
    /// Outputs after the last step.
    pub(super) fn last_outputs<'a>(&self, steps: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
        let (mut outputs, mut cells) = (vec![0.0; self.cells], vec![0.0; self.cells]);
        for step in steps {
            let gates: Vec<f64> = (self.bias.iter())
                .zip(self.input.chunks_exact(self.inputs))
                .zip(self.recurrent.chunks_exact(self.cells))
                .map(|((bias, input), recurrent)| {
                    bias + dot(input, step) + dot(recurrent, &outputs)
                })
                .collect();
            let gate = |gate: usize, cell: usize| gates[gate * self.cells + cell];
            for (at, cell) in cells.iter_mut().enumerate() {
                let fresh = sigmoid(gate(0, at)) * gate(2, at).tanh();
                *cell = sigmoid(gate(1, at)) * *cell + fresh;
                outputs[at] = sigmoid(gate(3, at)) * cell.tanh();
            }
        }
        outputs
    }
}

/// Affine layer: a row of weights and a bias for each output.
#[derive(Debug)]
pub(super) struct AffineLayer {
    /// Weights: a row for each output.
    pub(super) weight: Vec<f64>,
    /// Bias of each output.
    pub(super) bias: Vec<f64>,
}

impl AffineLayer {
    /// Outputs for these inputs.
    pub(super) fn outputs(&self, inputs: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(inputs.len().max(1));
        self.bias.iter().zip(rows).map(|(bias, row)| bias + dot(row, inputs)).collect()
    }
}

fn dot(row: &[f64], values: &[f64]) -> f64 {
    row.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

fn sigmoid(value: f64) -> f64 {
    1.0 / (1.0 + (-value).exp())
}
