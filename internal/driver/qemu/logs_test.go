// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
)

// readLogs returns a log up to its end.
func readLogs(t *testing.T, d *Driver, spec driver.ServerSpec, o driver.LogOptions) string {
	t.Helper()
	log, err := d.Logs(t.Context(), spec.UID, o)
	assert.NoError(t, err)
	text, err := io.ReadAll(log)
	assert.NoError(t, err)
	assert.NoError(t, log.Close())
	return string(text)
}

// TestLogs checks the log of machines that run and of those that are off, its end, and what
// was cut off it.
func TestLogs(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A\r\n")
	first := readLogs(t, d, spec, driver.LogOptions{})
	if !strings.HasSuffix(first, "drover guest 1 A\r\n") {
		t.Errorf("the log is %q", first)
	}
	restart(t, d, spec, "drover guest 2 A\r\n")
	off := spec
	off.Power = driver.PowerOff
	reach(t, d, off, driver.StateStopped)
	all := readLogs(t, d, spec, driver.LogOptions{})
	if !strings.HasPrefix(all, first) || strings.Count(all, "drover guest") != 2 {
		t.Errorf("of two runs the log is %q", all)
	}
	if got := readLogs(t, d, spec, driver.LogOptions{Follow: true}); got != all {
		t.Errorf("followed while it is off the log is %q", got)
	}
	if got := readLogs(t, d, spec, driver.LogOptions{TailLines: new(int64(1))}); !strings.HasSuffix(all, got) || strings.Count(got, "\n") > 1 || got == "" {
		t.Errorf("the last line is %q", got)
	}
	if got := readLogs(t, d, spec, driver.LogOptions{TailLines: new(int64)}); got != "" {
		t.Errorf("the last 0 lines are %q", got)
	}
	_, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Previous: true})
	wantError(t, err, driver.ErrRetry, "nothing was cut off")
	_, err = d.Logs(t.Context(), spec.UID, driver.LogOptions{TailLines: new(int64(-1))})
	wantError(t, err, driver.ErrInvalid, "tailLines is -1")

	assert.NoError(t, d.InstanceOf(spec.UID).CutLog(machine.SerialLogFile, 10))
	if got := readLogs(t, d, spec, driver.LogOptions{Previous: true, Follow: true}); got == "" || !strings.HasSuffix(all, got) {
		t.Errorf("cut off was %q", got)
	}
	if got := readLogs(t, d, spec, driver.LogOptions{}); got != "" {
		t.Errorf("left is %q", got)
	}
	_, err = e.openAs(t, "cluster-2", e.dir).Logs(t.Context(), spec.UID, driver.LogOptions{})
	wantError(t, err, driver.ErrNotFound)
	gone(t, d, spec)
	_, err = d.Logs(t.Context(), spec.UID, driver.LogOptions{})
	wantError(t, err, driver.ErrNotFound)
}

// TestLogsOfNothing checks the errors about servers without a log.
func TestLogsOfNothing(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	_, err := d.Logs(t.Context(), uuid.NewUUID(), driver.LogOptions{})
	wantError(t, err, driver.ErrNotFound)
	_, err = d.Logs(t.Context(), "../x", driver.LogOptions{})
	wantError(t, err, driver.ErrInvalid, "metadata.uid")
	spec := e.spec()
	spec.Power = driver.PowerOff
	reach(t, d, spec, driver.StateStopped) // it never ran
	_, err = d.Logs(t.Context(), spec.UID, driver.LogOptions{})
	wantError(t, err, driver.ErrRetry, "printed nothing yet")
	path := d.InstanceOf(spec.UID).File(instance.RecordFile)
	assert.NoError(t, os.Rename(path, path+".away"))
	_, err = d.Logs(t.Context(), spec.UID, driver.LogOptions{})
	wantError(t, err, driver.ErrRetry, "repair")
	assert.NoError(t, os.Rename(path+".away", path))
	gone(t, d, spec)
}

// TestLogsFollowed checks that a log that is followed goes on when it is cut, and ends with the
// machine.
func TestLogsFollowed(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := boots(t, d, spec, "drover guest 1 A\r\n")
	followed, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Follow: true, TailLines: new(int64(1))})
	assert.NoError(t, err)
	log := follow(t, followed)
	log.shows(t, "drover guest 1 A\r\n")
	assert.NoError(t, d.InstanceOf(spec.UID).CutLog(machine.SerialLogFile, 10))
	e.printWord(t, s, "zy")
	log.shows(t, "A\r\nzy")

	ctx, leave := context.WithCancel(t.Context())
	other, err := d.Logs(ctx, spec.UID, driver.LogOptions{Follow: true})
	assert.NoError(t, err)
	left := follow(t, other)
	left.shows(t, "zy")
	leave()
	left.ends(t, context.Canceled)
	closed, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Follow: true})
	assert.NoError(t, err)
	assert.NoError(t, closed.Close())
	assert.ErrorIs(t, "after it was closed", assert.ErrorOf(closed.Read(make([]byte, 1))), os.ErrClosed)

	assert.NoError(t, e.instanceFor(t, s).Kill(t.Context()))
	log.ends(t, io.EOF)
	if text, _ := log.read(); !strings.HasSuffix(text, "zy") {
		t.Errorf("at its end it has %q", text)
	}
	gone(t, d, spec)
}

// follow shows what a log has.
func follow(t *testing.T, log io.ReadCloser) *screen {
	t.Helper()
	s := &screen{ReadWriteCloser: struct {
		io.ReadCloser
		io.Writer
	}{log, io.Discard}}
	t.Cleanup(func() { _ = s.Close() })
	go s.copyFrom(log)
	return s
}
