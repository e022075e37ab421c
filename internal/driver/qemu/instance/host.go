// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/supervisor"
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

// Names in the driver's folder.
const (
	VMsDir           = "vms"
	RetainedDir      = "retained"
	NotificationsDir = "bells"
	EndsDir          = "ends"
)
