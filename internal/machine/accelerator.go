// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	_ "embed" // for the probe's guest
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Accelerators.
const (
	// AccelAuto means KVM where a guest really runs under it, else TCG.
	AccelAuto = "auto"
	// AccelKVM means the virtualisation of the processor.
	AccelKVM = launch.AccelKVM
	// AccelTCG means emulation, which works everywhere and is slow.
	AccelTCG = launch.AccelTCG
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

// Accelerator chooses what guests run on. It chooses once in a program's life, except when
// the device cannot be opened or a probe is slow.
type Accelerator struct {
	requested string
	program   *Program
	clock     clock.PassiveClock
	log       logr.Logger
	// Device is the KVM device, and probeWithin how long a guest may take under it.
	Device      string
	probeWithin time.Duration

	mu      sync.Mutex
	chosen  string
	retryAt time.Time // when to choose again; zero for never
	slow    int       // probes that did not end in time
}

// NewAccelerator returns a chooser for a QEMU. requested is AccelAuto, AccelKVM or
// AccelTCG.
func NewAccelerator(requested string, program *Program, c clock.PassiveClock, log logr.Logger) *Accelerator {
	return &Accelerator{
		requested: requested, program: program, clock: c, log: log,
		Device: launch.KVMDevice, probeWithin: probeWithin,
	}
}

// Choose returns AccelKVM or AccelTCG.
func (a *Accelerator) Choose(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.requested != AccelAuto {
		return a.requested, nil
	}
	if a.chosen != "" && (a.retryAt.IsZero() || a.clock.Now().Before(a.retryAt)) {
		return a.chosen, nil
	}
	if err := a.program.Users.CheckDevice(a.Device); err != nil {
		a.setChosen(err)
		a.retryAt = a.clock.Now().Add(openAgain)
		return a.chosen, nil
	}
	disk, err := makeProbe()
	if err != nil { // which says nothing about KVM
		return "", fmt.Errorf("making the guest that is to show whether KVM works: %w", err)
	}
	err = a.runProbe(ctx, disk)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if errors.Is(err, launch.ErrNoUser) || errors.Is(err, launch.ErrUserIDsExhausted) { // no guest ran
		return "", err
	}
	a.setChosen(err)
	if errors.Is(err, context.DeadlineExceeded) && a.slow < slowProbes {
		a.slow++
		a.retryAt = a.clock.Now().Add(slowAgain)
	}
	return a.chosen, nil
}

// setChosen chooses by the result of the probe's guest.
func (a *Accelerator) setChosen(err error) {
	before := a.chosen
	a.chosen, a.retryAt = AccelTCG, time.Time{}
	if err == nil {
		a.chosen = AccelKVM
	}
	switch {
	case a.chosen == before:
	case err == nil:
		a.log.Info("Machines run under KVM: a guest did")
	default:
		a.log.Info("Machines are emulated, which is slow: KVM does not do here", "cause", err.Error())
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
	// probeSize is the size of a disk from which the BIOS boots.
	probeSize = 1 << 20
)

// makeProbe makes the disk of the probe's guest, in memory.
func makeProbe() (*os.File, error) {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	made := os.NewFile(uintptr(fd), "probe")
	defer func() { _ = made.Close() }()
	content := make([]byte, probeSize)
	copy(content, probeGuest)
	if _, err := made.Write(content); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // for reading alone
}

// Probe reports whether a guest runs under KVM. It changes nothing on the host, and chooses
// nothing.
func (a *Accelerator) Probe(ctx context.Context) error {
	if err := a.program.Users.CheckDevice(a.Device); err != nil {
		return err
	}
	disk, err := makeProbe()
	if err != nil {
		return err
	}
	return a.runProbe(ctx, disk)
}

// runProbe runs a guest under KVM, confined as any other, and closes its disk. A device that
// opens proves nothing: inside other machines guests may hang.
func (a *Accelerator) runProbe(ctx context.Context, disk *os.File) error {
	defer func() { _ = disk.Close() }()
	policy, err := a.program.confinement.Find(ctx, a.program.Log, a.program.Name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.probeWithin)
	defer cancel()
	cmd := confine.Command(ctx, a.program.Name,
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", machineAlias, "-accel", AccelKVM, "-cpu", launch.CPUModel(AccelKVM), "-m", "16M",
		"-add-fd", "fd=3,set=3",
		"-blockdev", launch.Object{"driver": "raw", "node-name": "probe", "read-only": true, "file": launch.Object{"driver": "file", "filename": "/dev/fdset/3", "read-only": true}}.Text(),
		"-device", launch.Object{"driver": "virtio-blk-pci", "drive": "probe", "bootindex": 1}.Text(),
		"-device", launch.Object{"driver": "isa-debug-exit", "iobase": 0xf4, "iosize": 4}.Text())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &out, &out, []*os.File{disk}
	err = launch.StartProbe(cmd, policy, a.program.Users, a.Device)
	if err == nil {
		err = cmd.Wait()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == probeCode {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("a guest did not run within %v: %w", a.probeWithin, ctx.Err())
	}
	return fmt.Errorf("a guest did not run: %w: %.200s", err, bytes.TrimSpace(out.Bytes()))
}
