// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestContract(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t *testing.T, clusterID string) driver.Driver {
			t.Helper()
			return e.openAs(t, clusterID, e.dir)
		},
		Spec:         func(*testing.T) driver.ServerSpec { return e.spec() },
		StubbornSpec: func(*testing.T) driver.ServerSpec { return e.stubbornSpec() },
		OtherImage:   e.other,
		KeepsImage:   true,
		Losable: func(t *testing.T, clusterID string) drivertest.Losable {
			t.Helper()
			dir := filepath.Join(framework.ShortTempDir(t), "own")
			t.Cleanup(func() { endMachines(t, filepath.Dir(dir)) })
			move := func(from, to string) func() {
				return func() {
					assert.ReportError(t, os.Rename(from, to))
				}
			}
			return drivertest.Losable{
				Driver: e.openAs(t, clusterID, dir), Lose: move(dir, dir+".away"), Restore: move(dir+".away", dir),
			}
		},
		OutOfBand: e.engineActions(),
		Guest: drivertest.Guest{
			Print: func(t *testing.T, _ driver.Driver, s driver.Server, word string) {
				t.Helper()
				e.printWord(t, s, word+"\n")
			},
			Type: func(word string) string { return word },
		},
		IsDisk:   true,
		FailCode: exits.CodePanicked,
		Visible:  e.visible,
		Skips:    contractSkips(),
	})
}

func (e *engine) openAs(t *testing.T, clusterID, dir string) *Driver {
	t.Helper()
	o := e.options()
	o.ClusterID, o.Dir = clusterID, dir
	return openWith(t, o)
}

func (e *engine) stubbornSpec() driver.ServerSpec {
	spec := e.spec()
	spec.Image.Source = e.stubborn
	return spec
}

// instanceFor finds a server's directory without a driver.
func (e *engine) instanceFor(t *testing.T, s driver.Server) *instance.Instance {
	t.Helper()
	dir, err := statedir.Open("the test's folder", e.dir)
	assert.NoError(t, err)
	path := dir.Path(instance.VMsDir, string(s.UID))
	if s.Retained {
		path = dir.Path(instance.RetainedDir, string(s.UID)+"."+s.ID)
	}
	return instance.NewHost(instance.Options{Clock: clock.RealClock{}}, dir).InstanceAt(path)
}

func (e *engine) engineActions() drivertest.OutOfBand {
	return drivertest.OutOfBand{
		Kill: func(t *testing.T, s driver.Server) {
			t.Helper()
			assert.NoError(t, e.instanceFor(t, s).Machine.Kill(context.WithoutCancel(t.Context())))
		},
		Stop: func(t *testing.T, s driver.Server) {
			t.Helper()
			e.sendText(t, s, "x")
		},
		Exit: func(t *testing.T, s driver.Server, code int) {
			t.Helper()
			if code == 0 {
				e.sendText(t, s, "x")
			} else {
				e.sendText(t, s, "p")
			}
		},
		Pause: func(t *testing.T, s driver.Server) {
			t.Helper()
			assert.Eventually(t, "QEMU to stop the guest", func(testing.TB) error {
				return e.instanceFor(t, s).Machine.Execute(t.Context(), "stop", nil, nil)
			})
		},
		Remove: func(t *testing.T, s driver.Server) {
			t.Helper()
			h := e.instanceFor(t, s)
			assert.NoError(t, h.Machine.Kill(context.WithoutCancel(t.Context())))
			assert.NoError(t, os.RemoveAll(h.Machine.Path))
		},
		BurnCPU: func(t *testing.T, s driver.Server) {
			t.Helper()
			e.sendText(t, s, "b")
		},
	}
}

// sendText sends a text to the guest by its serial console once the guest listens.
func (e *engine) sendText(t *testing.T, s driver.Server, text string) {
	t.Helper()
	h := e.instanceFor(t, s)
	waitPrinted(t, h, "drover guest")
	typeText(t, h, text)()
}

// printWord has the guest repeat a word. The guest reads slowly, and QEMU drops what it has
// not read when the connection ends.
func (e *engine) printWord(t *testing.T, s driver.Server, word string) {
	t.Helper()
	h := e.instanceFor(t, s)
	defer typeText(t, h, word)()
	waitPrinted(t, h, word)
}

// typeText sends a text to the guest by its serial console, until stop.
func typeText(t *testing.T, h *instance.Instance, text string) (stop func()) {
	t.Helper()
	s, err := h.Load()
	assert.NoError(t, err)
	var console io.ReadWriteCloser
	assert.Eventually(t, "a console", func(testing.TB) error { // its supervisor may be about to be replaced
		c, err := s.Supervisor().Reach(t.Context())
		if err == nil {
			console, err = c.Console(t.Context(), true)
		}
		return err
	})
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, console)
	}()
	assert.NoError(t, assert.ErrorOf(console.Write([]byte(text))))
	return func() {
		_ = console.(interface{ CloseWrite() error }).CloseWrite()
		<-left // another one may type then
		_ = console.Close()
	}
}

// visible returns the command line and the content of the files other than the disks,
// although only the driver's user can read those.
func (e *engine) visible(t *testing.T, s driver.Server) string {
	t.Helper()
	h := e.instanceFor(t, s)
	line := framework.ReadFile(t, proc.Path(h.Machine.PID(), "cmdline"))
	text := line
	for _, name := range []string{instance.RecordFile, machine.LogFile, machine.SerialLogFile, machine.PIDFile} {
		content := framework.ReadFile(t, h.Machine.File(name))
		text += content
	}
	return text
}

// contractSkips has the cases that need a guest with an agent and a server, which the
// suite's guest does not have.
func contractSkips() map[string]string {
	skips := map[string]string{
		"StartedByHand": "a machine cannot be started without its driver",
		"LogsPrevious":  "the previous log has the part that was cut off: TestLogs",
	}
	for _, name := range []string{"Exec", "ExecEnds", "ExecInput", "ExecOfManyCallers", "ExecTerminal", "Interfaces", "Dial"} {
		skips[name] = "TestLinux checks this"
	}
	return skips
}
