// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// errStopped is why a start was cut short.
var errStopped = errors.New("the program was to stop before the guest ran")

// run is one run of the machine.
type run struct {
	description description.Machine

	options options
	machine machine.Machine
	log     logr.Logger
	output  *output
	// supervisor follows QEMU. It answers before that is started.
	supervisor *supervisor.Supervisor
	// progress is the progress of the disk that is being made.
	progress progress
	// stallWithin is how long a fetch may go without any data.
	stallWithin time.Duration
	found       found
}

func newRun(d description.Machine, o options, log logr.Logger) *run {
	r := &run{description: d, options: o, log: log, stallWithin: defaultStall}
	r.machine = machine.Machine{Path: o.runFolder, UUID: d.UUID, Staging: runFolder{atomicfile.Folder{Path: o.runFolder, Prefix: tempPrefix, Volatile: true}}}
	return r
}

// newSupervisor makes the supervisor, with the edge of the guest's network.
func (r *run) newSupervisor(ctx context.Context) error {
	network, err := r.openNetwork(ctx)
	if err != nil {
		return err
	}
	r.supervisor = supervisor.New(supervisor.Options{
		Network: network, Disks: r.describedSizes(), GracePeriod: time.Duration(r.description.GracePeriodSeconds) * time.Second,
		Progress: r.progress.copied, Clock: clock.RealClock{}, Log: r.log,
	})
	return nil
}

// describedSizes returns the sizes that the description has for disks that can grow.
func (r *run) describedSizes() map[string]int64 {
	sizes := map[string]int64{}
	if r.description.RootDisk != nil {
		sizes[launch.RootNode] = r.description.RootDisk.SizeBytes
	}
	for _, v := range r.description.Volumes {
		if !v.ReadOnly {
			sizes[launch.VolumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// runFolder makes the temporary files of a machine. A container's folder is gone after a power
// cut, so no file waits for the disk.
type runFolder struct{ atomicfile.Folder }

// Temp implements machine.Staging.
func (f runFolder) Temp() (path string, remove func(), err error) { return f.MakeFolder() }

// ReplaceVolatile implements machine.Staging.
func (f runFolder) ReplaceVolatile(path string, content []byte) error {
	return f.Replace(path, content, 0o600, nil)
}

// found are the disks that were found or made until now.
type found struct {
	mu    sync.Mutex
	disks disks
}

// addDisks changes what was found.
func (f *found) addDisks(change func(*disks)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.disks)
}

// allDisks returns what was found.
func (f *found) allDisks() disks {
	f.mu.Lock()
	defer f.mu.Unlock()
	return disks{f.disks.Root, slices.Clone(f.disks.Volumes)}
}

// runMachine starts the machine and stays until its guest has ended. An error means that the
// guest never ran.
func (r *run) runMachine(program context.Context, signals <-chan os.Signal) (end, error) {
	ctx, cancel := context.WithCancel(program)
	defer cancel()
	starting, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	go func() {
		<-signals
		r.beginStop(ctx)
		interrupt(errStopped)
		// A person is in a hurry. Container engines may send SIGTERM again, as after a restart.
		for <-signals != os.Interrupt { //nolint:revive // only waits
		}
		r.supervisor.Force("it was interrupted again")
	}()
	if err := r.serveControl(program); err != nil { // who reads the console learns of its end
		return end{}, err
	}
	qemu, err := r.startQEMU(starting)
	if errors.Is(context.Cause(starting), errStopped) && err != nil {
		return end{}, errStopped
	}
	if err != nil {
		return end{}, err
	}
	if pid := r.machine.PID(); pid != 0 {
		go reapOrphans(ctx, pid)
	}
	defer makeRaw(os.Stdin)()
	if err := r.startGuest(ctx, starting, qemu); err != nil {
		if starting.Err() != nil {
			err = errStopped
		}
		return end{}, errors.Join(qemu.explainStart(err), r.machine.Quit(ctx))
	}
	go r.typeIn(ctx)
	finished, err := r.supervisor.Run(ctx)
	switch {
	case finished.Reason == machine.EndKilled && finished.Output != "":
		finished.Message += ": " + finished.Output
	case finished.Message == supervisor.TooLate:
		finished.Message = fmt.Sprintf("the guest did not shut down within %d s, less what QEMU needs to end", r.supervisor.CurrentGracePeriod()/time.Second)
	}
	return end{Reason: finished.Reason, Message: finished.Message}, err
}

// startGuest resumes the guest of a QEMU that was started, unless the program is to stop.
func (r *run) startGuest(ctx, starting context.Context, qemu *child) error {
	ends, err := r.dialEnds(starting)
	if err != nil {
		return err
	}
	if err := r.supervisor.Attach(ctx, machine.CommandWithin, qemu, qemu.accelerator, ends); err != nil {
		return err
	}
	if err := errors.Join(r.openPorts(starting), r.serveProbes(ctx)); err != nil {
		return err
	}
	if err := r.supervisor.Start(starting); err != nil {
		return err
	}
	if err := os.WriteFile(r.startedFile(), nil, 0o600); err != nil {
		r.log.Error(err, "Probes will not find that the guest runs")
	}
	return nil
}

// dialEnds connects to a QEMU that was started.
func (r *run) dialEnds(ctx context.Context) (ends supervisor.Ends, err error) {
	for socket, to := range map[string]*net.Conn{machine.EventsSocket: &ends.Monitor, machine.SerialSocket: &ends.Serial, machine.AgentSocket: &ends.Agent, machine.NetworkSocket: &ends.Network} {
		if *to, err = r.machine.DialSocket(ctx, socket); err != nil {
			return ends, err
		}
	}
	return ends, nil
}

// beginStop has the guest shut down, and writes the termination message of a program that is killed before
// the guest has.
func (r *run) beginStop(ctx context.Context) {
	killed := end{Reason: endNotStarted, Message: errStopped.Error(), StopRequested: true, Disks: r.found.allDisks()}
	if r.supervisor.HasStarted() {
		killed.Reason, killed.Message = machine.EndKilled, "the machine was killed before its guest had shut down"
	}
	grace := r.supervisor.CurrentGracePeriod()
	_ = r.supervisor.Stop(ctx, "signal", grace-min(quitMargin, grace/2))
	if err := killed.writeMessage(r.options.termination); err != nil {
		r.log.Error(err, "Termination message could not be written")
	}
}

// startedFile is there once the guest runs.
func (r *run) startedFile() string { return filepath.Join(r.options.runFolder, "started") }

func (r *run) typeIn(ctx context.Context) {
	if err := r.supervisor.TypeFrom(ctx, os.Stdin); err != nil && ctx.Err() == nil {
		r.log.Info("Standard input does not reach the guest any more", "cause", err.Error())
	}
}

// startQEMU starts QEMU with the guest still halted. It makes the disk if there is none yet.
func (r *run) startQEMU(ctx context.Context) (*child, error) {
	if err := os.MkdirAll(r.options.runFolder, 0o700); err != nil {
		return nil, fmt.Errorf("--run-folder must be a folder that can be written to: %w", err)
	}
	runLock, err := r.machine.ClaimRun()
	if err != nil {
		return nil, err
	}
	defer func() { _ = runLock.Close() }()
	if err := os.Remove(r.startedFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files := &launch.Files{}
	defer files.Close()
	program, err := r.newProgram()
	if err != nil {
		return nil, err
	}
	config, err := r.prepareMachine(ctx, program, files)
	if err != nil {
		return nil, err
	}
	write, err := r.openOutput()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }()
	ended, err := r.machine.Start(ctx, program, config, files, runLock, func() {})
	if err != nil {
		return nil, err
	}
	r.logStart(config)
	return &child{r.machine, ended, config.Accel}, nil
}

// openOutput makes the pipe by which the guest prints.
func (r *run) openOutput() (write *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.output, r.machine.Output = newOutput(os.Stdout), write
	go r.output.copyFrom(read)
	return write, nil
}

func (r *run) newProgram() (*machine.Program, error) {
	users, err := launch.NewUsers("", "") // a container has no other
	return &machine.Program{Name: machine.DefaultProgram, Users: users, Log: r.log}, err
}

// prepareMachine makes what the machine needs, and opens the files that QEMU is to get.
func (r *run) prepareMachine(ctx context.Context, program *machine.Program, files *launch.Files) (launch.MachineConfig, error) {
	accelerator, err := machine.NewAccelerator(r.description.Accelerator, program, clock.RealClock{}, r.log).Choose(ctx)
	if err != nil {
		return launch.MachineConfig{}, err
	}
	chooseType := func(pinned string) (string, error) { return program.MachineType(ctx, pinned) }
	machineType, root, err := r.prepareRoot(ctx, chooseType, files)
	if err != nil {
		return launch.MachineConfig{}, err
	}
	config := r.description.Config(accelerator, machineType)
	config.Root = root
	if config.Volumes, err = r.prepareVolumes(ctx, files); err != nil {
		return config, err
	}
	if config.Kernel, err = r.openKernel(files); err != nil {
		return config, err
	}
	seed, err := r.readSeed()
	if err == nil {
		config.SeedFD, err = seed.AddTo(files, r.machine)
	}
	if err == nil {
		config.AgentFD, err = r.machine.AddAgent(files)
	}
	return config, err
}

// openKernel opens the files of a kernel that is booted directly.
func (r *run) openKernel(files *launch.Files) (*launch.Kernel, error) {
	if r.description.Kernel == nil {
		return nil, nil //nolint:nilnil // Nil stands for the image that the disk has.
	}
	image, err := diskimage.OpenRegular(r.description.Kernel.File, true)
	if err != nil {
		return nil, fmt.Errorf("kernel.file: %w", err)
	}
	opened := &launch.Kernel{FD: files.Add(image), Cmdline: r.description.Kernel.Cmdline}
	if r.description.Kernel.Initrd == "" {
		return opened, nil
	}
	initrd, err := diskimage.OpenRegular(r.description.Kernel.Initrd, true)
	if err != nil {
		return nil, fmt.Errorf("kernel.initrd: %w", err)
	}
	opened.InitrdFD = files.Add(initrd)
	return opened, nil
}

// readSeed reads what cloud-init gets.
func (r *run) readSeed() (machine.Seed, error) {
	seed := machine.Seed{InstanceID: r.description.UUID, Hostname: r.description.Name}
	if r.description.CloudInit == "" {
		return seed, nil
	}
	var keys string
	for name, to := range map[string]*string{"user-data": &seed.UserData, "network-data": &seed.NetworkData, "ssh-keys": &keys} {
		content, err := description.ReadLimited(filepath.Join(r.description.CloudInit, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return seed, fmt.Errorf("cloudInit: %w", err)
		}
		*to = string(content)
	}
	for line := range strings.Lines(keys) {
		if key := strings.TrimSpace(line); key != "" {
			seed.SSHKeys = append(seed.SSHKeys, key)
		}
	}
	return seed, nil
}

// logStart says on which accelerator the machine runs, and which privileges could not be taken from its QEMU.
func (r *run) logStart(c launch.MachineConfig) {
	confinement := "unknown"
	if found, err := r.machine.FindConfinement(); err == nil && found != nil {
		confinement = found.Describe()
	}
	r.log.Info("QEMU was started", "machineType", c.Type, "accelerator", c.Accel, "confinement", confinement)
}
