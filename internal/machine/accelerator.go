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
	// AccelAuto means KVM if a probe guest runs under it, else TCG.
	AccelAuto = "auto"
	// AccelKVM means the virtualisation of the processor.
	AccelKVM = launch.AccelKVM
	// AccelTCG means emulation, which works everywhere and is slow.
	AccelTCG = launch.AccelTCG
)

const (
	// probeWithin is how long the probe guest may take. Under nested KVM it may hang, or take
	// many seconds.
	probeWithin = 3 * time.Second
	// openAgain is the time until the next attempt to open the KVM device, since a module may
	// be loaded, or a group joined, while Drover runs.
	openAgain = time.Minute
	// slowAgain is the time until the next probe after one that was too slow, up to slowProbes
	// times: the host may be busy, such as after a boot.
	slowAgain  = 5 * time.Minute
	slowProbes = 3
)

// Accelerator chooses KVM or TCG. It chooses once in a program's life, and again only if the
// device cannot be opened or a probe is slow.
type Accelerator struct {
	requested string
	program   *Program
	clock     clock.PassiveClock
	log       logr.Logger
	// Device is the path of the KVM device.
	Device      string
	probeWithin time.Duration

	mu        sync.Mutex
	chosen    string
	retryAt   time.Time // when to choose again; zero for never
	slowCount int       // probes that did not end in time
}

// NewAccelerator returns an Accelerator for a QEMU. requested is AccelAuto, AccelKVM or
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
	disk, err := makeProbeDisk()
	if err != nil { // not a verdict on KVM
		return "", fmt.Errorf("making the disk of the guest that probes KVM: %w", err)
	}
	err = a.runProbe(ctx, disk)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if errors.Is(err, launch.ErrNoUser) || errors.Is(err, launch.ErrUserIDsExhausted) { // no guest ran
		return "", err
	}
	a.setChosen(err)
	if errors.Is(err, context.DeadlineExceeded) && a.slowCount < slowProbes {
		a.slowCount++
		a.retryAt = a.clock.Now().Add(slowAgain)
	}
	return a.chosen, nil
}

// setChosen chooses KVM, or TCG if a probe failed with err.
func (a *Accelerator) setChosen(err error) {
	before := a.chosen
	a.chosen, a.retryAt = AccelTCG, time.Time{}
	if err == nil {
		a.chosen = AccelKVM
	}
	switch {
	case a.chosen == before:
	case err == nil:
		a.log.Info("Machines run under KVM, which a probe guest has confirmed")
	default:
		a.log.Info("Machines are emulated, which is slow: KVM is not usable here", "cause", err.Error())
	}
}

// probeGuest is the boot sector that hack/guest/probe.s makes. As kernels do, it enters
// 64-bit mode with paging. It waits for 20 timer interrupts, which takes 70 ms, and makes
// QEMU exit with probeCode, which QEMU gives for nothing else.
//
//go:embed probe.bin
var probeGuest []byte

const (
	probeCode = 0x2a<<1 | 1
	// probeSize is enough for the BIOS to boot from the disk.
	probeSize = 1 << 20
)

// makeProbeDisk makes the disk of the probe guest, in memory.
func makeProbeDisk() (*os.File, error) {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	disk := os.NewFile(uintptr(fd), "probe")
	defer func() { _ = disk.Close() }()
	content := make([]byte, probeSize)
	copy(content, probeGuest)
	if _, err := disk.Write(content); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // read-only
}

// Probe fails unless a guest runs under KVM. It changes nothing on the host, and does not
// affect Choose.
func (a *Accelerator) Probe(ctx context.Context) error {
	if err := a.program.Users.CheckDevice(a.Device); err != nil {
		return err
	}
	disk, err := makeProbeDisk()
	if err != nil {
		return err
	}
	return a.runProbe(ctx, disk)
}

// runProbe runs the probe guest under KVM, confined as any other guest, and closes its disk. To open
// the device is not enough, since guests may hang under nested KVM.
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
		return fmt.Errorf("the probe guest did not finish under KVM within %v: %w", a.probeWithin, ctx.Err())
	}
	return fmt.Errorf("the probe guest failed under KVM: %w: %.200s", err, bytes.TrimSpace(out.Bytes()))
}
