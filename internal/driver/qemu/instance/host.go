// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// Names in the driver's folder.
const (
	VMsDir           = "vms"
	RetainedDir      = "retained"
	NotificationsDir = "bells"
	EndsDir          = "ends"
)

// Config are the settings that instances share.
type Config struct {
	ClusterID string
	// Accelerator is machine.AccelAuto, machine.AccelKVM or machine.AccelTCG.
	Accelerator string
	// Binary is the QEMU to run.
	Binary string
	// Users are the users that machines run as.
	Users *launch.Users
	Clock clock.WithTicker
	Log   logr.Logger
}

// Host is what the instances in a folder share.
type Host struct {
	Config
	remembered

	StateDir    *statedir.Dir
	Program     *machine.Program
	Accelerator *machine.Accelerator
	Images      *disks.ImageStore
	Disks       *disks.Store
	address     hostports.Address
	ChoosePort  hostports.Chooser
	// InstallSupervisor installs the program that follows each QEMU; nil for a host on which none is started.
	InstallSupervisor func() (*supervisor.Program, error)
	installing        sync.Mutex
	installed         *supervisor.Program
	LogBound          int64
	Memory            memory.Reservations
	// ReservedOf returns how much of the total memory is reserved.
	ReservedOf func(total int64) int64
	FindGroups func() (cgroup.Folder, error)
	// FindGroupMemory finds the memory that control groups leave to Drover.
	FindGroupMemory func() (group string, free int64, err error)
}

// NewHost returns the host of the instances in a folder. To start any of them it needs
// images, disks, choose and reserve too.
func NewHost(c Config, dir *statedir.Dir) *Host {
	program := &machine.Program{Name: c.Binary, Users: c.Users, Log: c.Log}
	return &Host{
		Config: c, StateDir: dir, Program: program,
		Accelerator: machine.NewAccelerator(c.Accelerator, program, c.Clock, c.Log),
		LogBound:    defaultLogBound, FindGroups: cgroup.Find, FindGroupMemory: cgroup.MemoryLeft,
	}
}

// FindSupervisor returns the program that follows each QEMU. It is installed at first.
func (h *Host) FindSupervisor() (*supervisor.Program, error) {
	h.installing.Lock()
	defer h.installing.Unlock()
	if h.InstallSupervisor == nil {
		return nil, errors.New("none is started here")
	}
	if h.installed != nil {
		return h.installed, nil
	}
	var err error
	h.installed, err = h.InstallSupervisor()
	return h.installed, err
}

// Platform is the part of a machine that no spec names.
type Platform struct {
	MachineType, Accelerator string
}

// FindPlatform finds what a run is made on. A server keeps the machine type that it has.
func (h *Host) FindPlatform(ctx context.Context, machineType string) (Platform, error) {
	machineType, err := h.Program.MachineType(ctx, machineType)
	if err != nil {
		return Platform{}, ContractError(err)
	}
	accel, err := h.Accelerator.Choose(ctx)
	if !errors.Is(err, ctx.Err()) { // else there is no error, or only that of ctx
		err = ContractError(h.StateDir.Explain(err))
	}
	return Platform{machineType, accel}, err
}

// DemandOf returns the memory that a server needs for a spec.
func DemandOf(s *Instance, spec driver.ServerSpec, accel string) memory.Demand {
	return memory.Demand{
		Guest: spec.MemoryBytes, Overhead: memory.OverheadOf(accel),
		RanBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// FindRoom returns what reservations check against: what is left of the host's memory
// besides the reserve, or of the control group that Drover and its machines are in.
// Machines of other clusters and released ones count like any other. A machine whose use
// cannot be read, as of another user, counts as if it used nothing yet.
func (h *Host) FindRoom() (memory.Room, error) {
	host, err := proc.ReadFigures("/proc/meminfo")
	if err != nil {
		return memory.Room{}, err
	}
	kept := h.ReservedOf(host["MemTotal"])
	have := memory.Room{Available: host["MemAvailable"] - kept, Reserve: kept, Where: fmt.Sprintf("on the host (besides %s that --qemu-reserve-memory keeps)", kit.FormatMegabytes(kept))}
	if group, free, err := h.FindGroupMemory(); err == nil && free < have.Available {
		have.Available, have.Reserve, have.Where = free, 0, "below the memory limit of "+group
	}
	have.Promised, err = h.PromisedMemory()
	return have, err
}

// PromisedMemory returns, by server, what running machines were promised and do not use yet.
func (h *Host) PromisedMemory() (map[string]int64, error) {
	instances, err := h.AllInstances()
	promised := map[string]int64{}
	for _, inst := range instances {
		if on, err := inst.IsRunning(); err != nil || !on {
			continue
		}
		r, err := inst.Load()
		if err != nil {
			continue
		}
		used, _ := proc.ReadUsage(inst.PID()) // nothing where it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes+memory.OverheadOf(r.Accelerator)-used.MemoryBytes)
	}
	return promised, err
}

// remembered is what a driver remembers of servers beside their records. What a released
// server must not share with a later one of its UID is by directory.
type remembered struct {
	// ReportedExits holds the last run whose exit was reported to a caller.
	ReportedExits driver.SyncMap[types.UID, string]
	// UnwrittenExits holds, by file, the exits that could not be written for lack of space.
	UnwrittenExits driver.SyncMap[string, driver.Exit]
}

// ForgetMissing removes what is remembered of servers that a complete list did not find,
// whichever process removed them.
func (r *remembered) ForgetMissing(found []*Instance) {
	exists := map[types.UID]bool{}
	for _, inst := range found {
		exists[inst.UID] = true
	}
	deleteMissing(&r.ReportedExits, exists)
	deleteMissing(&r.UnwrittenExits, exists)
}

// deleteMissing deletes the entries of servers that do not exist. A key is a UID, or a path
// whose last part begins with one.
func deleteMissing[K ~string, V any](m *driver.SyncMap[K, V], exists map[types.UID]bool) {
	m.DeleteFunc(func(key K, _ V) bool { return !exists[UIDOf(string(key))] })
}
