// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/terminal"
)

// Guest has the services that people reach in a machine: the console of its guest, and the guest agent.
type Guest interface {
	// Console attaches to the serial console until it is closed or ctx ends. A reader first gets the end
	// of the earlier output, then the output from then on, and io.EOF once the machine has ended. With
	// types set the caller may write. Only one caller may at a time, and failure.ErrTaken refuses another.
	Console(ctx context.Context, types bool) (io.ReadWriteCloser, error)
	// Exec runs a command until it ends, and returns its exit code, 128 plus the signal's number if
	// a signal ended it. The error may come with an exit code, as failure.ErrOutputCut does.
	Exec(ctx context.Context, c terminal.Command) (exitCode int, err error)
	// TakesInput reports whether a command gets input while it runs. Otherwise it starts once its input has ended.
	TakesInput() bool
	// Interfaces returns the network interfaces that the guest reports, without the loopback one.
	Interfaces(ctx context.Context) ([]report.Interface, error)
	// NetworkStatistics returns the figures of the guest's network. It needs no agent.
	NetworkStatistics(ctx context.Context) (report.NetworkStatistics, error)
}
