// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"io"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// TestGuest reaches the guest of a real machine, which runs without an agent and ends when x is typed. A pod
// that was made without --pod-streams offers nothing.
func TestGuest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newNode(t)
	s := w.newServer(t, "web")
	s.Ports = []driver.Port{{Protocol: "TCP", Port: 7443}}
	s.reach(t, driver.StateRunning)
	s.usage(t) // the guest runs, which this kubelet does not wait for, and its disk is made
	d, ok := openWith(t, shared.Config, clusterID, 0, true).(streaming)
	assert.Require(t, ok, "a driver with --pod-streams lacks streams")
	assert.ErrorIs(t, "a console of a pod from before --pod-streams", assert.ErrorOf(d.Console(t.Context(), s.UID)), driver.ErrUnsupported, "restart the VM", "--pod-streams")
	s.turn(t, driver.PowerOff, driver.StateStopped)
	assert.ErrorIs(t, "a console of a machine that is off", assert.ErrorOf(d.Console(t.Context(), s.UID)), driver.ErrRetry, "")

	s.d = d.Driver
	s.turn(t, driver.PowerOn, driver.StateRunning)
	if secret, err := w.kube.CoreV1().Secrets(s.Namespace).Get(t.Context(), objects.SecretOf(s.pod(t)), metav1.GetOptions{}); err != nil || len(secret.Data[control.GuestCAFile]) == 0 {
		t.Errorf("the pod lacks the authority of those who reach its guest: %v", err)
	}
	first, second := s.openConsole(t, d), s.openConsole(t, d)
	readFirst, readSecond := streams.ReadAll(t, first), streams.ReadAll(t, second)
	readFirst.WaitForText(t, "drover guest")
	readSecond.WaitForText(t, "drover guest")
	_, err := d.Exec(t.Context(), s.UID, terminal.Command{Args: []string{"true"}})
	assert.ErrorIs(t, "a command without an agent", err, driver.ErrUnsupported, "qemu-guest-agent")
	_, err = d.Exec(t.Context(), s.UID, terminal.Command{Args: []string{"true"}, TTY: true})
	assert.ErrorIs(t, "a command with a terminal", err, driver.ErrUnsupported, "cannot give a command")
	assert.ErrorIs(t, "interfaces without an agent", assert.ErrorOf(d.Interfaces(t.Context(), s.UID)), driver.ErrUnsupported, "qemu-guest-agent")
	for _, port := range []int32{81, 8443} {
		assert.ErrorIs(t, "a port that is not the guest's", assert.ErrorOf(d.Dial(t.Context(), s.UID, port)), driver.ErrInvalid, "spec.ports")
	}
	assert.NoError(t, assert.ErrorOf(io.WriteString(first, "\n")))
	assert.ErrorIs(t, "another one who types", assert.ErrorOf(io.WriteString(second, "\n")), driver.ErrConsoleTaken, "")
	assert.NoError(t, first.Close())
	assert.NoError(t, assert.ErrorOf(io.WriteString(second, "x")))
	readSecond.WaitForEnd(t, io.EOF)
	s.deleteAll(t)
}

// openConsole opens a console once the guest runs, which this kubelet does not wait for.
func (s *server) openConsole(t *testing.T, d streaming) (c io.ReadWriteCloser) {
	t.Helper()
	assert.Eventually(t, "the console opens", func(testing.TB) (err error) {
		c, err = d.Console(t.Context(), s.UID)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}
