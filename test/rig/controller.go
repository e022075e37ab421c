// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/test/vmtest"
)

// stopWithin is how long a controller may take to stop.
const stopWithin = 20 * time.Second

// controllerMain is the main function of drover-controller, but for the
// process.
func controllerMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app.NewCommand().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "drover-controller:", err)
		return 1
	}
	return 0
}

// args are the flags of a controller of this world, which is alone in it unless
// further ones, which come last, say otherwise.
func (w *World) args(more []string) []string {
	return append([]string{
		"--leader-elect=false", "--vm-driver=docker,fake", "--docker-image=" + vmtest.GuestPlain,
		"--fake-dir=" + w.FakeDir, "--fake-faults=" + w.faults,
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, more...)
}

// Local is a controller in this process, where -race sees it.
type Local struct {
	cancel context.CancelFunc
	done   chan error
}

// RunLocal starts a controller in this process.
func (w *World) RunLocal(args ...string) (*Local, error) {
	o := app.NewOptions()
	flags := pflag.NewFlagSet("drover-controller", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := errors.Join(flags.Parse(w.args(args)), o.Validate()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Local{cancel: cancel, done: make(chan error, 1)}
	go func() { c.done <- app.Run(ctx, o, w.Config) }()
	return c, nil
}

// Stop stops the controller and waits for its end.
func (c *Local) Stop() error {
	c.cancel()
	select {
	case err := <-c.done:
		c.done <- nil // for a second Stop
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	case <-time.After(stopWithin):
		return fmt.Errorf("the controller did not stop within %s", stopWithin)
	}
}

// Run is RunLocal for one test, at whose end the controller stops.
func (w *World) Run(t testing.TB, args ...string) *Local {
	t.Helper()
	c, err := w.RunLocal(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.MustStop(t) })
	return c
}

// MustStop is Stop, and fails the test if the controller did not end well.
func (c *Local) MustStop(t testing.TB) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Errorf("stop the controller: %v", err)
	}
}

// Child is a controller in a process of its own, which can be killed.
type Child struct {
	*vmtest.Process
	t testing.TB
}

// Spawn starts a controller in a process of its own, that of the same program.
func (w *World) Spawn(t testing.TB, env []string, args ...string) *Child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args = append(w.args(args), "--kubeconfig="+w.Kubeconfig)
	p, err := vmtest.StartProcess(self, args, append([]string{asController + "=1"}, env...))
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{Process: p, t: t}
	t.Cleanup(c.end)
	return c
}

// MustStop ends the controller as Ctrl-C does.
func (c *Child) MustStop() {
	c.t.Helper()
	if err := c.Stop(); err != nil {
		c.t.Errorf("stop the controller: %v", err)
	}
}

// MustKill ends it as kill -9 does.
func (c *Child) MustKill() {
	c.t.Helper()
	if err := c.Kill(); err != nil {
		c.t.Errorf("kill the controller: %v", err)
	}
}

func (c *Child) end() {
	if !c.Over() {
		c.MustStop()
	}
	if strings.Contains(c.Output(), "DATA RACE") {
		c.t.Error("the controller had a data race")
	}
	if c.t.Failed() {
		c.t.Logf("the controller printed:\n%s", c.Output())
	}
}

// AwaitLog waits until a controller has logged a text.
func (w *World) AwaitLog(t testing.TB, c *Child, text string) {
	t.Helper()
	vmtest.Eventually(t, Soon, "the controller logs "+text, func() error {
		if !strings.Contains(c.Output(), text) {
			return errors.New("it has not")
		}
		return nil
	})
}
