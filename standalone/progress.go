// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/signals"
	"cloudnative.tw/drover/standalone/internal/controlplane"
)

// stopContext returns a context that ends with the first SIGTERM, Ctrl-C or loss of the terminal.
func stopContext(ctx context.Context) context.Context {
	if signal.Ignored(syscall.SIGHUP) { // nohup
		return signals.StopContext(ctx)
	}
	return signals.StopContext(ctx, syscall.SIGHUP)
}

// progress shows on the terminal what happens, in a few lines.
type progress struct {
	out   io.Writer
	begin time.Time
}

func (p *progress) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.out, format, args...)
}

// Ready implements supervisor.Observer.
func (p *progress) Ready(name string, took time.Duration) {
	p.printf("  %-24s ready  %4.1f s\n", name, took.Seconds())
}

// Waiting implements supervisor.Observer.
func (p *progress) Waiting(name string, after time.Duration, cause error) {
	why := "see the log for details"
	if cause != nil {
		why = fmt.Sprintf("%v (see the log for details)", cause)
	}
	p.printf("  %-24s is not ready after %.0f s, waiting: %s\n", name, after.Seconds(), why)
}

// Stopping implements supervisor.Observer.
func (p *progress) Stopping() {
	p.printf("\nStopping; servers go on running. Ctrl-C again ends immediately.\n")
}

// Stopped implements supervisor.Observer.
func (p *progress) Stopped(name string, took time.Duration) {
	p.printf("  %-24s stopped %4.1f s\n", name, took.Seconds())
}

// LeftBehind implements supervisor.Observer.
func (p *progress) LeftBehind(name string, after time.Duration) {
	p.printf("  %-24s did not stop in %.1f s, continuing without it\n", name, after.Seconds())
}

// printNextSteps explains the next steps.
func (p *progress) printNextSteps(plane *controlplane.Config) {
	path := plane.Dir.Kubeconfig()
	p.printf(`Ready after %.1f s at %s

Kubeconfig: %s
Next, in another terminal:

  export KUBECONFIG=%s
  kubectl apply -f examples/test-vm.yaml
  kubectl get vms --watch

(no kubectl? "%s kubectl" is one). Ctrl-C stops Drover.
`, time.Since(p.begin).Seconds(), plane.URL(), path, printable.ShellWord(path), printable.ShellWord(os.Args[0]))
}
