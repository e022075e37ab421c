// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/accounts"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// kvmFacts are facts about the acceleration of machines.
type kvmFacts struct {
	requested string // the value of --qemu-accel
	user      User
	device    error  // why Drover, or a machine's user, may not open the device
	group     string // the group of the device
	module    string // the kernel module for the processor; empty if it does not support virtualisation
	probed    bool   // a guest was started
	probe     error  // why the guest did not run
}

func gatherKVM(ctx context.Context, h *Host) kvmFacts {
	f := kvmFacts{requested: h.QEMU.Accel, user: h.User, module: findModule(), group: groupOfFile(launch.KVMDevice)}
	users, err := h.machineUsers()
	if err != nil {
		f.device = err
		return f
	}
	f.device = h.User.tryAs(func() error { return users.CheckDevice(launch.KVMDevice) })
	program, err := h.machineProgram(users)
	if f.device != nil || err != nil || !h.User.isCaller() {
		return f
	}
	if _, err := program.Version(ctx); err != nil {
		return f
	}
	f.probed, f.probe = true, machine.NewAccelerator(machine.AccelKVM, program, h.Clock, logr.Discard()).Probe(ctx)
	if errors.Is(f.probe, launch.ErrNoUser) { // the check machine-user reports this
		f.probed = false
	}
	return f
}

// machineProgram returns the QEMU that machines run on. If root has started the command, it returns an error for a QEMU
// that another user could change, even if the command now runs as that user.
func (h *Host) machineProgram(users *launch.Users) (*machine.Program, error) {
	name := h.QEMU.Binary
	if path, err := exec.LookPath(name); err == nil && h.ByRoot {
		if err := datadir.CheckRoots(path); err != nil {
			return nil, fmt.Errorf("root does not run %s: %w", path, err)
		}
		name = path
	}
	return &machine.Program{Name: name, Users: users, Log: logr.Discard()}, nil
}

// findModule returns the kernel module for the virtualisation of this processor, or "" if the
// processor does not support virtualisation.
func findModule() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "flags") {
			continue
		}
		for flag := range strings.FieldsSeq(line) {
			switch flag {
			case "vmx":
				return "kvm_intel"
			case "svm":
				return "kvm_amd"
			}
		}
		return ""
	}
	return ""
}

// groupOfFile returns the name of a file's group, or "" if it is the group of root.
func groupOfFile(path string) string {
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil || info.Gid == 0 {
		return ""
	}
	if g, err := accounts.FindGroupByID(info.Gid); err == nil {
		return g.Name
	}
	return strconv.Itoa(int(info.Gid))
}

const emulated = "Machines are emulated, which is many times slower. Containers are not affected."

func judgeKVM(f kvmFacts) []findings.Finding {
	problem := findings.Warning
	meaning := emulated
	switch f.requested {
	case machine.AccelTCG:
		return oneFinding(findings.Note("machines are emulated, as --qemu-accel=tcg says"))
	case machine.AccelKVM:
		problem, meaning = findings.Error, "Machines do not start, since --qemu-accel=kvm allows no emulation."
	}
	switch {
	case errors.Is(f.device, errOtherUser):
		return oneFinding(findings.Note("%s: %v", launch.KVMDevice, f.device))
	case errors.Is(f.device, fs.ErrNotExist) && f.module != "":
		return oneFinding(problem("there is no %s, though the processor could have one", launch.KVMDevice).Means("%s", meaning).
			FixedBy("load the kernel's module").FixedByCommand("sudo modprobe %s", f.module))
	case errors.Is(f.device, fs.ErrNotExist):
		return oneFinding(problem("there is no %s, and the processor shows no virtualisation", launch.KVMDevice).Means("%s", meaning).
			FixedBy("on hardware, turn on VT-x or AMD-V in the firmware; in a virtual machine, turn on nested virtualisation on its host"))
	case f.device != nil:
		return oneFinding(fixDevice(problem("%v", f.device).Means("%s", meaning), f))
	case f.probed && f.probe != nil:
		return oneFinding(problem("%s opens, but a guest does not run under it: %v", launch.KVMDevice, f.probe).Means("%s", meaning).
			FixedBy("if this is a virtual machine, its host may not support nested virtualisation well"))
	case f.probed:
		return oneFinding(findings.OK("a guest ran under %s", launch.KVMDevice))
	}
	return oneFinding(findings.OK("%s opens as user %s", launch.KVMDevice, f.user.Name))
}

// fixDevice adds the command that lets Drover or its machines use the device.
func fixDevice(problem findings.Finding, f kvmFacts) findings.Finding {
	switch {
	case f.group != "" && !f.user.isRoot():
		return problem.FixedBy("add user %s to the group of the device, then start Drover again", f.user.Name).
			FixedByCommand("sudo usermod --append --groups %s %s", printable.ShellWord(f.group), printable.ShellWord(f.user.Name))
	case f.group == "":
		return problem.FixedBy("give the device a group; udev does so once QEMU's package is installed").
			FixedByCommand("sudo chgrp kvm %s && sudo chmod 660 %[1]s", launch.KVMDevice)
	}
	return problem.FixedByCommand("sudo chmod 660 %s", launch.KVMDevice)
}

// cgroupFacts are facts about the limits of machines' CPU time.
type cgroupFacts struct {
	folder   cgroup.Folder
	err      error // why a group cannot be created in folder
	isDrover bool  // folder is the group of the running Drover, not of the caller
}

func gatherCgroup(_ context.Context, h *Host) cgroupFacts {
	f := cgroupFacts{isDrover: h.isDroverRunning()}
	if f.isDrover {
		f.folder, f.err = cgroup.FindOf(h.PID)
	} else {
		f.folder, f.err = cgroup.Find()
	}
	if f.err == nil {
		f.err = h.User.tryAs(f.folder.Check)
	}
	return f
}

func judgeCgroup(f cgroupFacts) []findings.Finding {
	version := 1
	if f.folder.Unified {
		version = 2
	}
	owner := "of this shell"
	if f.isDrover {
		owner = "of Drover"
	}
	switch {
	case errors.Is(f.err, errOtherUser):
		return oneFinding(findings.Note("%v", f.err))
	case f.err != nil:
		return oneFinding(findings.Note("control groups (version %d) %s cannot be divided: %v", version, owner, f.err).
			Means("A machine with a fraction of a CPU gets whole CPUs, and its status says so. Containers are not affected.").
			FixedBy("run Drover as the service of its package, which has Delegate=cpu"))
	}
	return oneFinding(findings.OK("version %d; the group %s can be divided: %s", version, owner, f.folder.Path))
}

// confinementFacts are facts about the confinement of machines.
type confinementFacts struct {
	abi       int      // the version of Landlock that confines machines
	landlock  error    // why Landlock does not confine machines
	filters   bool     // system calls are filtered
	exposures []string // parts of the host that the machines' users can reach
	noQEMU    bool     // QEMU could not be run, so abi is the kernel's version
}

func gatherConfinement(ctx context.Context, h *Host) confinementFacts {
	f := confinementFacts{abi: confine.ABI(), filters: confine.FiltersCalls()}
	users, err := h.machineUsers()
	if err != nil {
		users = &launch.Users{} // the check machine-user reports the error
	}
	f.exposures = users.FindExposuresOf(h.User.ID, h.User.allGroups(), h.QEMU.Dir)
	program, err := h.machineProgram(users)
	if err == nil {
		_, err = program.Version(ctx)
	}
	if err != nil {
		f.noQEMU = true
		return f
	}
	f.abi, f.landlock = program.Landlock(ctx)
	return f
}

func judgeConfinement(f confinementFacts) []findings.Finding {
	var all []findings.Finding
	switch gaps := confine.Gaps(f.abi); {
	case f.landlock != nil:
		all = append(all, findings.Warning("machines run without Landlock: %v", f.landlock).
			Means("A guest that breaks out of QEMU can open the files that its user may open.").
			FixedBy("use a kernel with Landlock (5.13 or newer, and landlock in /sys/kernel/security/lsm) and the QEMU of the distribution"))
	case f.abi == 0 && f.noQEMU:
		all = append(all, findings.Warning("this kernel lacks Landlock, or it is turned off").
			Means("A guest that breaks out of QEMU can open the files that its user may open.").
			FixedBy("use a kernel of version 5.13 or newer, with landlock in /sys/kernel/security/lsm"))
	case len(gaps) > 0:
		all = append(all, findings.Note("Landlock version %d confines machines", f.abi).
			Means("A newer kernel would also prevent: %s.", strings.Join(gaps, "; ")))
	default:
		all = append(all, findings.OK("Landlock version %d confines machines", f.abi))
	}
	if !f.filters {
		all = append(all, findings.Warning("system calls of machines are not filtered on this architecture").
			Means("A guest that breaks out of QEMU can use every system call of the kernel."))
	}
	for _, exposure := range f.exposures {
		all = append(all, findings.Warning("%s", exposure).Means("The confinement of machines cannot make up for this access to the host."))
	}
	return all
}
