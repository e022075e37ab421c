// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/addresses"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/qemu/shares"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/broker"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Names in the driver's folder.
const (
	VMsDir           = "vms"
	RetainedDir      = "retained"
	NotificationsDir = "bells"
	// AddressesDir has a link for each address of a machine.
	AddressesDir = "addresses"
	// BrokerDir is the folder of the broker, which connects machines to each other.
	BrokerDir = "broker"
)

// Options are the settings that instances share.
type Options struct {
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

// Host has the state and settings that the instances in a folder share.
type Host struct {
	Options

	StateDir *statedir.Dir
	Exits    *exits.Store
	// ReportedExits holds the last run whose exit was reported to a caller.
	ReportedExits driver.SyncMap[types.UID, string]
	Program       *machine.Program
	Accelerator   *machine.Accelerator
	Images        *disks.ImageStore
	Disks         *disks.Store
	address       hostports.Address
	OpenPort      hostports.Opener
	// Addresses assigns an address in the range of the network to each machine.
	Addresses *addresses.Pool
	// EgressPolicy says where guests may connect to. Without resolvers in it, guests use the host's resolvers.
	EgressPolicy control.Egress
	// starts bounds how often supervisors and the broker are started.
	starts *proc.Starts
	// Broker connects machines to each other.
	Broker broker.Place
	// InstallSupervisor installs the program that controls a QEMU. It is nil in processes that start no machines.
	InstallSupervisor func() (*installation.Program, error)
	installMu         sync.Mutex
	installed         *installation.Program
	installError      error // the error of the last try
	nextInstall       time.Time
	// LogBound bounds each log of a machine, in bytes. OutputBound bounds stdout and stderr of a container image's command.
	LogBound, OutputBound int64
	// GuestDir is the folder of the kernel that boots container images.
	GuestDir string
	Memory   memory.Reservations
	// ReservedOf returns how much of the host's total memory machines may not use.
	ReservedOf func(total int64) int64
	FindGroups func() (cgroup.Folder, error)
	// FindGroupMemory finds the memory that control groups leave to Drover.
	FindGroupMemory func() (cgroup.Memory, error)
	// Shares admits machines to the shares of their namespaces.
	Shares shares.Account
}

// NewHost returns the host of the instances in a folder. A caller that starts instances has to set
// the remaining exported fields, for example Images and Disks.
func NewHost(c Options, dir *statedir.Dir) *Host {
	program := &machine.Program{Name: c.Binary, Users: c.Users, Log: c.Log}
	h := &Host{
		Options: c, StateDir: dir, Program: program, Exits: &exits.Store{StateDir: dir, Clock: c.Clock, Log: c.Log},
		Accelerator: machine.NewAccelerator(c.Accelerator, program, c.Clock, c.Log),
		LogBound:    defaultLogBound, OutputBound: output.DefaultBound, FindGroups: cgroup.Find, FindGroupMemory: cgroup.FindMemory,
		starts: proc.NewStarts(c.Clock),
	}
	h.Shares.Find = h.findShares
	h.Broker = broker.Place{
		Folder:  machine.Machine{Path: dir.Path(BrokerDir), Mark: BrokerDir, Staging: dir},
		Program: h.FindSupervisor, StartAs: c.Users.StartAs, Starts: h.starts,
		Checks: &rate.Sometimes{Interval: broker.CheckEvery},
	}
	return h
}

// InstanceAt returns the server whose directory is at a path, without its record. The name of the
// directory begins with the UID.
func (h *Host) InstanceAt(path string) *Instance {
	uid := record.UIDOf(path)
	return &Instance{
		Machine: machine.Machine{Path: path, Mark: string(uid), Staging: h.StateDir},
		Record:  record.Record{UID: uid}, Host: h,
	}
}

// InstanceOf returns the server of a UID, whose directory may not exist.
func (h *Host) InstanceOf(uid types.UID) *Instance {
	return h.InstanceAt(h.StateDir.Path(VMsDir, string(uid)))
}

// AllInstances returns the servers of all clusters, the released ones last.
func (h *Host) AllInstances() ([]*Instance, error) {
	var instances []*Instance
	for _, sub := range []string{VMsDir, RetainedDir} {
		entries, err := os.ReadDir(h.StateDir.Path(sub))
		if err != nil {
			return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && record.UIDOf(entry.Name()) != "" {
				instances = append(instances, h.InstanceAt(h.StateDir.Path(sub, entry.Name())))
			}
		}
	}
	return instances, nil
}

// InstancesOf returns the servers of some UIDs, whose directories may not exist.
func (h *Host) InstancesOf(uids []types.UID) ([]*Instance, error) {
	uids, err := driver.UniqueUIDs(uids)
	if err != nil {
		return nil, err
	}
	instances := make([]*Instance, len(uids))
	for i, uid := range uids {
		instances[i] = h.InstanceOf(uid)
	}
	return instances, nil
}

// IsRetained reports whether a directory belongs to a released server.
func IsRetained(path string) bool { return filepath.Base(filepath.Dir(path)) == RetainedDir }

// RetainedPath returns the directory of a released server.
func (h *Host) RetainedPath(uid types.UID, id string) string {
	return h.StateDir.Path(RetainedDir, string(uid)+"."+id)
}

// Notify notifies all watchers, in every process, that servers have changed. It writes a
// notification file for each server, and leaves no file for a server that does not exist.
func (h *Host) Notify(uids ...types.UID) {
	for _, uid := range uids {
		if err := h.StateDir.ReplaceVolatile(h.notificationFile(uid), nil); err != nil {
			h.Log.V(1).Info("Notification could not be written", "uid", uid, "cause", err.Error())
		}
		if h.InstanceOf(uid).IsGone() {
			h.RemoveNotification(uid)
		}
	}
}

// notificationFile returns the path of the file that is written to notify watchers.
func (h *Host) notificationFile(uid types.UID) string {
	return h.StateDir.Path(NotificationsDir, string(uid))
}

// RemoveNotification removes the notification file of a server that is gone.
func (h *Host) RemoveNotification(uid types.UID) { _ = os.Remove(h.notificationFile(uid)) }

// installEvery is the time between two tries to install the supervisor's program.
const installEvery = 5 * time.Second

// FindSupervisor returns the program that controls a QEMU. The first call installs it.
func (h *Host) FindSupervisor() (*installation.Program, error) {
	h.installMu.Lock()
	defer h.installMu.Unlock()
	if h.InstallSupervisor == nil {
		return nil, errors.New("this process does not start supervisors")
	}
	if now := h.Clock.Now(); h.installed == nil && !now.Before(h.nextInstall) {
		h.installed, h.installError = h.InstallSupervisor()
		h.nextInstall = now.Add(installEvery)
	}
	return h.installed, h.installError
}

// Platform is the part of a machine that the host determines, not the spec.
type Platform struct {
	MachineType, Accelerator string
}

// FindPlatform finds the platform for a run. It keeps a machineType that the server has already.
func (h *Host) FindPlatform(ctx context.Context, machineType string) (Platform, error) {
	machineType, err := h.Program.MachineType(ctx, machineType)
	if err != nil {
		return Platform{}, ContractError(err)
	}
	accel, err := h.Accelerator.Choose(ctx)
	if !errors.Is(err, ctx.Err()) { // an error of the host, not of the caller's context
		err = ContractError(h.StateDir.Explain(err))
	}
	return Platform{machineType, accel}, err
}

// DemandOf returns the memory that a server needs for a spec.
func DemandOf(s *Instance, spec driver.ServerSpec, accel string) memory.Demand {
	return memory.Demand{
		Guest: spec.MemoryBytes, Overhead: memory.OverheadOf(accel) + containerboot.FilesBytes(spec),
		RanBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// FindRoom returns the memory for new machines: the host's available memory without the
// reserve, or what the control group of Drover and its machines leaves, whichever is less.
// It counts released machines and machines of other clusters too. A machine whose use
// cannot be read, for example another user's, counts as if it used nothing yet.
func (h *Host) FindRoom() (memory.Room, error) {
	host, err := proc.ReadStats("/proc/meminfo")
	if err != nil {
		return memory.Room{}, err
	}
	reserve := h.ReservedOf(host["MemTotal"])
	room := memory.Room{Available: host["MemAvailable"] - reserve, Reserve: reserve, Where: fmt.Sprintf("on the host (besides %s that --qemu-reserve-memory keeps)", kit.FormatMegabytes(reserve))}
	if group, err := h.FindGroupMemory(); err == nil && group.Free < room.Available {
		room.Available, room.Reserve, room.Where = group.Free, 0, "below the memory limit of "+group.Group
	}
	room.Promised, err = h.PromisedMemory()
	return room, err
}

// PromisedMemory returns, by server ID, how much memory running machines may still come to use.
func (h *Host) PromisedMemory() (map[string]int64, error) {
	instances, err := h.AllInstances()
	promised := map[string]int64{}
	for _, inst := range instances {
		if on, err := inst.Machine.IsRunning(); err != nil || !on {
			continue
		}
		r, err := inst.Load()
		if err != nil {
			continue
		}
		used, _ := proc.ReadUsage(inst.Machine.PID()) // zero if it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes+memory.OverheadOf(r.Accelerator)-used.MemoryBytes-inst.Supervisor().MemoryBytes())
	}
	return promised, err
}

// RemoveGroup removes the control group of a run that is over. It only logs an error, since the
// group is empty.
func (h *Host) RemoveGroup(ctx context.Context, group string) {
	if err := cgroup.Remove(ctx, group); err != nil {
		h.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
	}
}

// KillStrays kills QEMU processes of a UID that do not hold its run lock: one that is just ending,
// or one whose directory or lock file was removed or replaced, for example by restoring a backup.
// The caller knows that no QEMU holds the lock.
func (h *Host) KillStrays(ctx context.Context, uid types.UID) error {
	m, err := h.machineOf(uid)
	if err != nil {
		return err
	}
	return m.KillStrays(ctx, func(pid int) (onKilled func()) {
		h.Log.Info("Killing a QEMU that does not hold its run lock", "uid", uid, "pid", pid)
		group := cgroup.GroupOf(pid, string(uid))
		return func() { h.RemoveGroup(ctx, group) }
	})
}

// EndOthers calls KillStrays before a start. It fails if a QEMU of the UID runs in another folder:
// that QEMU may belong to another engine, so EndOthers does not end it.
func (h *Host) EndOthers(ctx context.Context, uid types.UID) error {
	if err := h.KillStrays(ctx, uid); err != nil {
		return err
	}
	m, err := h.machineOf(uid)
	if err != nil {
		return err
	}
	if pid, dir := m.FindElsewhere(); pid != 0 {
		return driver.Errorf(driver.ErrRetry, "a QEMU of this UID runs in the folder %s, process %d: a second one would be its double; end that process, or put that folder back in the place of %s", dir, pid, m.Path)
	}
	return nil
}

// machineOf returns the machine of a UID, whose folder may be missing.
func (h *Host) machineOf(uid types.UID) (machine.Machine, error) {
	// The path is compared with paths from the kernel, which are without symbolic links.
	vms, err := filepath.EvalSymlinks(h.StateDir.Path(VMsDir))
	if err != nil {
		return machine.Machine{}, h.StateDir.Explain(err)
	}
	return machine.Machine{Path: filepath.Join(vms, string(uid)), Mark: string(uid)}, nil
}

// ForgetMissing drops the cached exits of servers that a complete list did not find. Another process
// may have removed these servers.
func (h *Host) ForgetMissing(found []*Instance) {
	exists := map[types.UID]bool{}
	for _, inst := range found {
		exists[inst.UID] = true
	}
	h.ReportedExits.DeleteFunc(func(uid types.UID, _ string) bool { return !exists[uid] })
	h.Exits.ForgetMissing(exists)
}
