// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// embedMachine makes controllers in this process use bin/drover-machine, which make build builds.
var embedMachine = sync.OnceValue(func() (err error) {
	installation.Embedded, err = framework.ReadMachine()
	return err
})

// runController does what the main function of drover-controller does, and
// returns the exit code.
func runController() int {
	if err := embedMachine(); err != nil {
		fmt.Fprintln(os.Stderr, "drover-controller:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app.NewCommand().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "drover-controller:", err)
		return 1
	}
	return 0
}

// controllerArgs returns the flags of a controller of this environment. They assume that it
// is the only controller; the flags in more come last and can change this.
func (env *Environment) controllerArgs(more []string) []string {
	return append([]string{
		"--leader-elect=false", "--vm-driver=docker,fake", "--docker-image=" + framework.GuestPlain,
		"--fake-dir=" + env.FakeDir, "--fake-faults=" + env.faults, "--lease-lock-namespace=" + env.Namespace,
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, more...)
}

// LocalController is a controller in this process, where the race detector checks it.
type LocalController struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// StartController starts a controller in this process.
func (env *Environment) StartController(args ...string) (*LocalController, error) {
	o := app.NewOptions()
	o.StopTimeout, o.WriteDecision = -1, env.WriteDecision // no timeout: Stop waits
	flags := pflag.NewFlagSet("drover-controller", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := errors.Join(embedMachine(), flags.Parse(env.controllerArgs(args)), o.Validate()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &LocalController{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = app.Run(ctx, o, env.Config)
	}()
	return c, nil
}

// Stop stops the controller and waits for its end.
func (c *LocalController) Stop() error {
	c.cancel()
	err := assert.Poll(context.Background(), "the controller stops", func() error {
		select {
		case <-c.done:
			return nil
		default:
			return errors.New("it is still running")
		}
	})
	if err == nil {
		err = c.err
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// RunController is StartController for a test, at whose end the controller stops.
func (env *Environment) RunController(t testing.TB, args ...string) *LocalController {
	t.Helper()
	c, err := env.StartController(args...)
	assert.NoError(t, err)
	t.Cleanup(func() { c.MustStop(t) })
	return c
}

// MustStop is Stop, and fails the test if the controller did not end cleanly.
func (c *LocalController) MustStop(t testing.TB) {
	t.Helper()
	assert.ErrorIs(t, "stop the controller", c.Stop(), nil)
}

// NewWithController is New with a controller in this process. The caller must call stop, which closes both.
func NewWithController(args ...string) (env *Environment, stop func() error, err error) {
	if env, err = New(); err != nil {
		return nil, nil, err
	}
	c, err := env.StartController(args...)
	if err != nil {
		return nil, nil, errors.Join(err, env.Close())
	}
	return env, func() error { return errors.Join(c.Stop(), env.Close()) }, nil
}

// AnyMetricsAddress makes a controller serve its metrics at a port of its choice, which ControllerProcess finds.
const AnyMetricsAddress = "--metrics-bind-address=127.0.0.1:0"

// ControllerProcess is a controller in a separate process, which can be killed.
type ControllerProcess struct {
	*framework.Process
	t testing.TB
}

// StartControllerProcess starts a controller in a separate process, by running this test
// program again.
func (env *Environment) StartControllerProcess(t testing.TB, variables []string, args ...string) *ControllerProcess {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	args = append(env.controllerArgs(args), "--kubeconfig="+env.Kubeconfig)
	p, err := framework.StartProcess(self, args, append([]string{ControllerEnv + "=1"}, variables...))
	assert.NoError(t, err)
	c := &ControllerProcess{Process: p, t: t}
	t.Cleanup(c.stopAtEnd)
	return c
}

// MustStop ends the controller by SIGTERM.
func (c *ControllerProcess) MustStop() {
	c.t.Helper()
	if err := c.Stop(); err != nil {
		c.t.Errorf("stop the controller: %v", err)
	}
}

// MustKill ends the controller by SIGKILL.
func (c *ControllerProcess) MustKill() {
	c.t.Helper()
	if err := c.Kill(); err != nil {
		c.t.Errorf("kill the controller: %v", err)
	}
}

func (c *ControllerProcess) stopAtEnd() {
	if !c.HasEnded() {
		c.MustStop()
	}
	if strings.Contains(c.Output(), "DATA RACE") {
		c.t.Error("the controller had a data race")
	}
	if c.t.Failed() {
		c.t.Logf("the controller printed:\n%s", c.Output())
	}
}

// WaitForLog waits until a controller has logged a text.
func (env *Environment) WaitForLog(t testing.TB, c *ControllerProcess, text string) {
	t.Helper()
	assert.Eventually(t, "the controller logs "+text, func(testing.TB) error {
		return assert.ErrorUnless(strings.Contains(c.Output(), text), "the text is not in its output")
	})
}
