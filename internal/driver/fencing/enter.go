// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unfenced

package fencing

import "context"

func enterGate(ctx context.Context, gate Gate) (guarded context.Context, epoch uint64, leave func(), err error) {
	return gate.Enter(ctx)
}
