// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

// FD returns the descriptor of a lock's file.
func FD(l *Lock) int { return int(l.file.Fd()) }
