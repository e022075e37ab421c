// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unfenced

package statedir

// CompareEpochs accepts every epoch, for tests that prove that they would find a missing
// fence.
func CompareEpochs(uint64, uint64) error { return nil }
