// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	_ "embed" // for the probe's guest
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// Accelerators.
const (
	// AccelAuto : KVM where a guest really runs under it, else TCG.
	AccelAuto = "auto"
	// AccelKVM : the processor's own virtualisation.
	AccelKVM = "kvm"
	// AccelTCG : emulation, which works everywhere and is slow.
	AccelTCG = "tcg"
)

const (
	// probeWithin is how long a guest may take that does next to nothing. Emulated
	// it takes less than a second; under a KVM that is itself within a machine it
	// may take many, and kernels minutes.
	probeWithin = 3 * time.Second
	// probeAgain is when a guest that took too long has another try, since it may have
	// been the host that was busy; probeTries is how many there are.
	probeAgain = 5 * time.Minute
	probeTries = 4
	// askWithin is how long QEMU may take to tell its version.
	askWithin = 10 * time.Second
	// minMajor and minMinor are of the first QEMU that takes -device as JSON.
	minMajor, minMinor = 6, 2
)

// program is the QEMU that machines run on. Its version is asked for once.
type program struct {
	name string

	mu sync.Mutex
	ok bool
}

var versionPattern = regexp.MustCompile(`version (\d+)\.(\d+)`)

// check refuses a QEMU that is missing or too old.
func (p *program) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, p.name, "--version").Output() //nolint:gosec // an option
	if errors.Is(err, exec.ErrNotFound) {
		return driver.Errorf(driver.ErrUnavailable, "%s is not installed, or not in PATH", p.name)
	}
	if err != nil {
		return driver.Errorf(driver.ErrUnavailable, "asking %s for its version: %w", p.name, err)
	}
	if err := checkVersion(out); err != nil {
		return driver.Errorf(driver.ErrUnavailable, "%s: %w", p.name, err)
	}
	p.ok = true
	return nil
}

func checkVersion(out []byte) error {
	found := versionPattern.FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("it does not tell its version but %.80q", out)
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < minMajor || (major == minMajor && minor < minMinor) {
		return fmt.Errorf("it is version %d.%d, and %d.%d or newer is needed", major, minor, minMajor, minMinor)
	}
	return nil
}

// accelerator chooses what guests run on: once, but for a probe that hung or was slow.
type accelerator struct {
	wanted string

	mu      sync.Mutex
	chosen  string
	tries   int
	againAt time.Time // when to choose again; zero for never
}

func (a *accelerator) choose(ctx context.Context, d *Driver) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.chosen != "" && (a.againAt.IsZero() || d.Clock.Now().Before(a.againAt)) {
		return a.chosen, nil
	}
	if err := d.program.check(ctx); err != nil {
		return "", err
	}
	if a.wanted != AccelAuto {
		a.chosen = a.wanted
		return a.chosen, nil
	}
	err := d.probe(ctx)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if _, is := errors.AsType[notProbedError](err); is {
		return "", d.dir.Explain(err)
	}
	a.judge(err, d)
	return a.chosen, nil
}

// judge goes by what became of the probe's guest. One that was refused would be so
// again.
func (a *accelerator) judge(err error, d *Driver) {
	a.chosen, a.againAt = AccelKVM, time.Time{}
	if err == nil {
		d.Log.Info("Machines run under KVM: a guest did")
		return
	}
	a.chosen = AccelTCG
	if a.tries++; !mayHaveBeenBusy(err) || a.tries == probeTries {
		d.Log.Info("Machines are emulated, which is slow: KVM does not do here", "cause", err.Error())
		return
	}
	a.againAt = d.Clock.Now().Add(probeAgain)
	d.Log.Info("Machines are emulated for now, which is slow: a start after a while tries KVM again", "cause", err.Error(), "after", probeAgain.String())
}

// probeGuest is a boot sector, of hack/guest/probe.s: it goes where kernels go, to
// 64-bit mode with paging, waits for 20 interrupts of the timer, which takes 70 ms,
// and tells QEMU to exit with a code that nothing else gives.
//
//go:embed probe.bin
var probeGuest []byte

const (
	probeCode = 0x2a<<1 | 1
	// probeSize is that of a disk from which the BIOS boots.
	probeSize = 1 << 20
)

var (
	errHung = fmt.Errorf("a guest hung for %v", probeWithin)
	errSlow = errors.New("a guest was too slow")
)

// mayHaveBeenBusy tells whether it may have been the host, and not its KVM.
func mayHaveBeenBusy(err error) bool { return errors.Is(err, errHung) || errors.Is(err, errSlow) }

// notProbedError says why no guest was tried, which tells nothing of KVM: a disk that
// is full has room later.
type notProbedError struct{ error }

func (e notProbedError) Unwrap() error { return e.error }

// tooSlow is how many times as long as emulated a guest may take under KVM.
const tooSlow = 2

// probeKVM runs a guest. A KVM device that opens proves nothing: inside of other
// machines guests may hang, or take so long that it is better to emulate them.
// The emulated one comes first: QEMU's own files are then read from the disk at its
// cost, and not at that of KVM.
func (d *Driver) probeKVM(ctx context.Context) error {
	if err := openKVM(); err != nil {
		return err
	}
	tmp, remove, err := d.makeProbe()
	if err != nil {
		return notProbedError{fmt.Errorf("making the guest that is to show whether KVM does: %w", err)}
	}
	defer remove()
	emulated, noneEmulated := d.runProbe(ctx, tmp, AccelTCG, "max")
	took, err := d.runProbe(ctx, tmp, AccelKVM, "host")
	if err != nil {
		return err
	}
	if noneEmulated == nil && took > tooSlow*emulated {
		return fmt.Errorf("%w: it took %v, and %v emulated", errSlow, took.Round(time.Millisecond), emulated.Round(time.Millisecond))
	}
	return nil
}

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

// runProbe tells how long the probe's guest took.
func (d *Driver) runProbe(ctx context.Context, tmp, accel, cpu string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.Binary, //nolint:gosec // an option
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel", accel, "-cpu", cpu, "-m", "16M",
		"-blockdev", object{"driver": "raw", "node-name": "probe", "read-only": true, "file": object{"driver": "file", "filename": "probe"}}.text(),
		"-device", object{"driver": "virtio-blk-pci", "drive": "probe", "bootindex": 1}.text(),
		"-device", object{"driver": "isa-debug-exit", "iobase": 0xf4, "iosize": 4}.text())
	cmd.Dir = tmp
	begin := d.Clock.Now()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == probeCode {
		return d.Clock.Since(begin), nil
	}
	if ctx.Err() != nil {
		return 0, errHung
	}
	return 0, fmt.Errorf("a guest did not run: %w: %.200s", err, out)
}

func openKVM() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
