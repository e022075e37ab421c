// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// StopContext returns a context that ends with the first Ctrl-C or SIGTERM. A Ctrl-C after that ends the
// process immediately. Another SIGTERM does not: service managers and container engines send several.
func StopContext(parent context.Context) context.Context {
	ctx, _ := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	return ctx
}
