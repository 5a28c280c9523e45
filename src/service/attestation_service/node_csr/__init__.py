"""Certificate requests of Kubernetes nodes: judged for approvers, signed for signers, told of to operators."""
