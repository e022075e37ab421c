// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signals ends the programs in order on a signal, and keeps them running when the reader of
// their output has gone. Start with StopContext.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// StopContext returns a context that ends with the first Ctrl-C, SIGTERM or other of the signals. A
// Ctrl-C after that ends the process immediately, which loses nothing that was acknowledged. Another
// SIGTERM does not: service managers and container engines send several.
func StopContext(parent context.Context, others ...os.Signal) context.Context {
	ctx, cancel := context.WithCancel(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, append(others, os.Interrupt, syscall.SIGTERM)...)
	go func() {
		stopAndWait(got, cancel)
		os.Exit(130)
	}()
	return ctx
}

// stopAndWait calls stop at the first signal, and returns at a Ctrl-C after that.
func stopAndWait(got <-chan os.Signal, stop func()) {
	<-got
	stop()
	for <-got != os.Interrupt { //nolint:revive // only waits
	}
}

// SurviveSIGPIPE keeps a program running after the reader of its standard output or error has closed
// the pipe: a write fails then, where SIGPIPE would end the process in the middle of its work. To
// ignore the signal instead would have the programs that it starts ignore it, too.
func SurviveSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
