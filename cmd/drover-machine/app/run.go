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

// errStopped means that a signal has interrupted the start.
var errStopped = errors.New("a stop was requested before the guest ran")

// run is one run of the machine.
type run struct {
	description description.Machine

	options options
	machine machine.Machine
	log     logr.Logger
	output  *outputBuffer
	// supervisor follows QEMU. It answers calls before QEMU is started.
	supervisor *supervisor.Supervisor
	// progress is the progress of the image that is being copied.
	progress progress
	// stallWithin is how long a download may receive no data.
	stallWithin time.Duration
	found       foundDisks
}

func newRun(d description.Machine, o options, log logr.Logger) *run {
	r := &run{description: d, options: o, log: log, stallWithin: defaultStall}
	r.machine = machine.Machine{Path: o.runFolder, Mark: d.UUID, Staging: runFolder{atomicfile.Folder{Path: o.runFolder, Prefix: tempPrefix, Volatile: true}}}
	return r
}

// newSupervisor makes the supervisor, and opens the guest's network.
func (r *run) newSupervisor(ctx context.Context) error {
	network, err := r.openNetwork(ctx)
	if err != nil {
		return err
	}
	r.supervisor = supervisor.New(supervisor.Options{
		Network: network, Disks: r.describedSizes(), GracePeriod: time.Duration(r.description.GracePeriodSeconds) * time.Second,
		CopyProgress: r.progress.copied, Clock: clock.RealClock{}, Log: r.log,
	})
	return nil
}

// describedSizes returns the described sizes of the disks that can grow, by QEMU's node names.
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

// runFolder makes the temporary files of a machine. It never syncs files, since the folder of a
// container does not outlive a power cut.
type runFolder struct{ atomicfile.Folder }

// Temp implements machine.Staging.
func (f runFolder) Temp() (path string, remove func(), err error) { return f.MakeFolder() }

// ReplaceVolatile implements machine.Staging.
func (f runFolder) ReplaceVolatile(path string, content []byte) error {
	return f.Replace(path, content, 0o600, nil)
}

// foundDisks are the disks that were found or made so far.
type foundDisks struct {
	mu    sync.Mutex
	disks disks
}

func (f *foundDisks) addDisks(add func(*disks)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.disks)
}

func (f *foundDisks) allDisks() disks {
	f.mu.Lock()
	defer f.mu.Unlock()
	return disks{f.disks.Root, slices.Clone(f.disks.Volumes)}
}

// runMachine starts the machine, and returns when its guest has ended. An error means that the
// guest never ran.
func (r *run) runMachine(programCtx context.Context, signals <-chan os.Signal) (end, error) {
	ctx, cancel := context.WithCancel(programCtx)
	defer cancel()
	starting, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	go func() {
		<-signals
		r.beginStop(ctx)
		interrupt(errStopped)
		// A second interrupt is from a person in a hurry. A second SIGTERM means nothing: container
		// engines may repeat it, such as after their restart.
		for <-signals != os.Interrupt { //nolint:revive // only waits
		}
		r.supervisor.Force("it was interrupted again")
	}()
	if err := r.serveControl(programCtx); err != nil { // not ctx: readers of the console receive the last output after it
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
		return end{}, errors.Join(qemu.explainStartError(err), r.machine.Quit(ctx))
	}
	go r.copyInput(ctx)
	finished, err := r.supervisor.Run(ctx)
	switch {
	case finished.Reason == machine.EndKilled && finished.Output != "":
		finished.Message += ": " + finished.Output
	case finished.Message == supervisor.TooLate:
		finished.Message = fmt.Sprintf("the guest did not shut down within %d s, less the time that QEMU needs to end", r.supervisor.CurrentGracePeriod()/time.Second)
	}
	return end{Reason: finished.Reason, Message: finished.Message}, err
}

// startGuest attaches the supervisor to QEMU, opens the ports, and resumes the guest. starting ends if a stop is
// requested.
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
		r.log.Error(err, "Startup probes fail, though the guest runs")
	}
	return nil
}

// dialEnds connects to the sockets of QEMU.
func (r *run) dialEnds(ctx context.Context) (ends supervisor.Ends, err error) {
	for socket, conn := range map[string]*net.Conn{machine.EventsSocket: &ends.Monitor, machine.SerialSocket: &ends.Serial, machine.AgentSocket: &ends.Agent, machine.NetworkSocket: &ends.Network} {
		if *conn, err = r.machine.DialSocket(ctx, socket); err != nil {
			return ends, err
		}
	}
	return ends, nil
}

// beginStop makes the guest shut down. It writes a termination message now, in case this program is killed before
// the guest has ended.
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

// startedFile returns the path of a file that exists once the guest runs. Probes look for it.
func (r *run) startedFile() string { return filepath.Join(r.options.runFolder, "started") }

func (r *run) copyInput(ctx context.Context) {
	if err := r.supervisor.TypeFrom(ctx, os.Stdin); err != nil && ctx.Err() == nil {
		r.log.Info("Standard input does not reach the guest any more", "cause", err.Error())
	}
}

// startQEMU makes missing disks, and starts QEMU with the guest halted.
func (r *run) startQEMU(ctx context.Context) (*child, error) {
	if err := os.MkdirAll(r.options.runFolder, 0o700); err != nil {
		return nil, fmt.Errorf("--run-folder must be a writable folder: %w", err)
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
	exited, err := r.machine.Start(ctx, program, config, files, runLock, func() {})
	if err != nil {
		return nil, err
	}
	r.logStart(config)
	return &child{r.machine, exited, config.Accel}, nil
}

// openOutput makes the pipe for the guest's output, and copies it to standard output.
func (r *run) openOutput() (write *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.output, r.machine.Output = newOutputBuffer(os.Stdout), write
	go r.output.copyFrom(read)
	return write, nil
}

func (r *run) newProgram() (*machine.Program, error) {
	users, err := launch.NewUsers("", "") // QEMU runs as the user of the container
	return &machine.Program{Name: machine.DefaultProgram, Users: users, Log: r.log}, err
}

// prepareMachine makes the disks and the seed, opens QEMU's files, and returns QEMU's configuration.
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
		return nil, nil //nolint:nilnil // The machine boots from its disk.
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

// readSeed reads the files for cloud-init.
func (r *run) readSeed() (machine.Seed, error) {
	seed := machine.Seed{InstanceID: r.description.UUID, Hostname: r.description.Name}
	if r.description.CloudInit == "" {
		return seed, nil
	}
	var keys string
	for name, field := range map[string]*string{"user-data": &seed.UserData, "network-data": &seed.NetworkData, "ssh-keys": &keys} {
		content, err := description.ReadLimited(filepath.Join(r.description.CloudInit, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return seed, fmt.Errorf("cloudInit: %w", err)
		}
		*field = string(content)
	}
	for line := range strings.Lines(keys) {
		if key := strings.TrimSpace(line); key != "" {
			seed.SSHKeys = append(seed.SSHKeys, key)
		}
	}
	return seed, nil
}

// logStart logs the machine's accelerator, and how its QEMU is confined.
func (r *run) logStart(c launch.MachineConfig) {
	confinement := "unknown"
	if found, err := r.machine.FindConfinement(); err == nil && found != nil {
		confinement = found.Describe()
	}
	r.log.Info("QEMU was started", "machineType", c.Type, "accelerator", c.Accel, "confinement", confinement)
}
