// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	_ "embed" // for the probe's guest
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// Accelerators.
const (
	// AccelAuto means KVM where a guest really runs under it, else TCG.
	AccelAuto = "auto"
	// AccelKVM means the processor's own virtualisation.
	AccelKVM = driver.AccelKVM
	// AccelTCG means emulation, which works everywhere and is slow.
	AccelTCG = driver.AccelTCG
)

const (
	// probeWithin is how long a guest that does next to nothing may take. Under nested KVM
	// it may hang, or take many seconds.
	probeWithin = 3 * time.Second
	// openAgain is when a KVM device that could not be opened is tried again, since a module
	// may be loaded and a group joined while Drover runs.
	openAgain = time.Minute
	// slowAgain is when a guest that did not run in time is tried again, and slowProbes how
	// often: the host may have been busy, as after a boot.
	slowAgain  = 5 * time.Minute
	slowProbes = 3
)

// accelerator chooses what guests run on. It chooses once in a controller's life, except
// when the device cannot be opened or a probe is slow.
type accelerator struct {
	wanted string

	mu      sync.Mutex
	chosen  string
	againAt time.Time // when to choose again; zero for never
	slow    int       // probes that did not end in time
}

func (a *accelerator) choose(ctx context.Context, d *Driver) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted != AccelAuto {
		return a.wanted, nil
	}
	if a.chosen != "" && (a.againAt.IsZero() || d.Clock.Now().Before(a.againAt)) {
		return a.chosen, nil
	}
	if err := openDevice(d.kvm); err != nil {
		a.settle(d, err)
		a.againAt = d.Clock.Now().Add(openAgain)
		return a.chosen, nil
	}
	tmp, remove, err := d.makeProbe()
	if err != nil { // which says nothing about KVM
		return "", d.dir.Explain(fmt.Errorf("making the guest that is to show whether KVM works: %w", err))
	}
	defer remove()
	err = d.runProbe(ctx, tmp)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	a.settle(d, err)
	if errors.Is(err, context.DeadlineExceeded) && a.slow < slowProbes {
		a.slow++
		a.againAt = d.Clock.Now().Add(slowAgain)
	}
	return a.chosen, nil
}

// settle chooses by the result of the probe's guest.
func (a *accelerator) settle(d *Driver, err error) {
	before := a.chosen
	a.chosen, a.againAt = AccelTCG, time.Time{}
	if err == nil {
		a.chosen = AccelKVM
	}
	switch {
	case a.chosen == before:
	case err == nil:
		d.Log.Info("Machines run under KVM: a guest did")
	default:
		d.Log.Info("Machines are emulated, which is slow: KVM does not do here", "cause", err.Error())
	}
}

// probeGuest is a boot sector, of hack/guest/probe.s: it goes where kernels go, to
// 64-bit mode with paging, waits for 20 interrupts of the timer, which takes 70 ms,
// and has QEMU exit with a code that nothing else gives.
//
//go:embed probe.bin
var probeGuest []byte

const (
	probeCode = 0x2a<<1 | 1
	// probeSize is that of a disk from which the BIOS boots.
	probeSize = 1 << 20
)

// makeProbe makes a folder with the disk of the probe's guest.
func (d *Driver) makeProbe() (tmp string, remove func(), err error) {
	tmp, remove, err = d.dir.Temp()
	if err != nil {
		return "", nil, err
	}
	content := make([]byte, probeSize)
	copy(content, probeGuest)
	if err := os.WriteFile(filepath.Join(tmp, "probe"), content, 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return tmp, remove, nil
}

// runProbe runs a guest under KVM. A device that opens proves nothing: inside other
// machines guests may hang.
func (d *Driver) runProbe(ctx context.Context, tmp string) error {
	ctx, cancel := context.WithTimeout(ctx, d.probeWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.Binary, //nolint:gosec // an option
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", machineAlias, "-accel", AccelKVM, "-cpu", cpuModel(AccelKVM), "-m", "16M",
		"-blockdev", object{"driver": "raw", "node-name": "probe", "read-only": true, "file": object{"driver": "file", "filename": "probe"}}.text(),
		"-device", object{"driver": "virtio-blk-pci", "drive": "probe", "bootindex": 1}.text(),
		"-device", object{"driver": "isa-debug-exit", "iobase": 0xf4, "iosize": 4}.text())
	cmd.Dir = tmp
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == probeCode {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("a guest did not run within %v: %w", d.probeWithin, ctx.Err())
	}
	return fmt.Errorf("a guest did not run: %w: %.200s", err, bytes.TrimSpace(out))
}

func openDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // a constant
	if err != nil {
		return err
	}
	return f.Close()
}
