// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/terminal"
)

// Guest has the services of a guest: its console, commands and network interfaces.
type Guest interface {
	// Console attaches to the serial console until it is closed or ctx ends. Reads return the end of the
	// earlier output, then new output, and io.EOF once the machine has ended. Only one caller at a time may
	// set canWrite: others get failure.ErrTaken.
	Console(ctx context.Context, canWrite bool) (io.ReadWriteCloser, error)
	// Exec runs a command until it ends, and returns its exit code: 128 plus the signal's number if a
	// signal ended the command. The exit code is valid also with failure.ErrOutputCut.
	Exec(ctx context.Context, c terminal.Command) (exitCode int, err error)
	// TakesInput reports whether a command gets input while it runs. Otherwise it starts once its input has ended.
	TakesInput() bool
	// Interfaces returns the network interfaces that the guest reports, without the loopback interface.
	Interfaces(ctx context.Context) ([]report.Interface, error)
	// NetworkStatistics returns the traffic counters of the guest's network. It needs no agent.
	NetworkStatistics(ctx context.Context) (report.NetworkStatistics, error)
}
