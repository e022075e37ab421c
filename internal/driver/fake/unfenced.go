// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unfenced

package fake

// against lets everybody through, for the test that shows what the fence is
// good for.
func (claim) against(uint64) error { return nil }
