// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qemu runs servers as QEMU machines on this host, each followed by a supervisor.
//
// Start with Ensure in ensure.go. It observes a server and converges it to the
// spec, one step of nextStep at a time. check.go and fields.go refuse specs, image.go
// fetches what a run needs, list.go reports servers and their usage, watch.go notifies of
// changes, delete.go and shutdown.go end servers.
//
// What one server is and does is in package instance below, in layers: instance is based on
// record (what is stored of a server), disks (disks on top of images) and hostports (ports of
// the host), and on packages machine (QEMU) with supervisor and control below it, and image
// (fetching). Package guest reaches what runs in machines.
//
// # The folder
//
//	engine-id              the engine's identity, a UUID
//	data-version           which versions of Drover can read the folder: see package format
//	vms/<uid>/             one server, mode 0700
//	  server.json          its record
//	  run.lock             locked by its QEMU, and by no other process, while that runs
//	  pid                  of its QEMU
//	  root.qcow2           its root disk
//	  volume-<name>.qcow2  its further disks
//	  seed.iso             what cloud-init reads, secrets included
//	  ctl.sock             QMP, for one command at a time
//	  events.sock          QMP, for the supervisor
//	  serial.sock          the serial console; serial.log has its output
//	  agent.sock           leads to the guest's agent
//	  supervisor.lock      locked by its supervisor, and by no other process, while that runs
//	  supervisor.sock      leads to the supervisor
//	  supervisor.json      which supervisor was started last, and the token that it asks for
//	  supervisor.log       what the supervisor printed
//	  qemu.log             what QEMU printed
//	  stdout.log, stderr.log   the output of a container image's command: see package output
//	  *.log.1              what a log held before it was cut, or in the previous run
//	  qemu.log.failed      what QEMU printed at the last start that failed
//	retained/<uid>.<id>/   a server that was released; end is the supervisor's record
//	ends/<uid>.<id>.<run>.end   how the supervisor says that a run has ended
//	ends/<uid>.<id>.<run>.json  the exit of a run as the driver found it, which takes precedence
//	bells/<uid>            notification file: written when a server changes, for watchers
//	images/                a place for images, always allowed
//	cache/                 images that were fetched: see package image
//	broker/                the lock, socket and log of the broker, which connects machines to each other
//	programs/              the program of supervisors
//	locks/, epochs/, tmp/  see package statedir
//
// # Processes
//
// A machine outlives the controller that started it: see package machine. One with a
// fraction of a CPU is in a separate control group, named after the UID, where one can
// be made. Its supervisor outlives the controller too. It records how the guest has ended,
// and then makes QEMU quit. Every call that finds a QEMU without a supervisor starts one:
// see package supervisor.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/addresses"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/qemu/guest"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/shares"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/converter"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/output"
)

// Names in the driver's folder, beside those of package instance.
const (
	imagesDir   = "images"
	programsDir = "programs"
	cacheDir    = folder.ImagesDir
)

// Name is the driver's name in the API.
const Name = "qemu"

// DefaultBinary is the QEMU that machines run on.
const DefaultBinary = machine.DefaultProgram

// Accelerators.
const (
	AccelAuto = machine.AccelAuto
	AccelKVM  = machine.AccelKVM
	AccelTCG  = machine.AccelTCG
)

// Options are the options of a Driver.
type Options struct {
	// ClusterID marks the servers as this cluster's. Required.
	ClusterID string
	// Dir is the folder that holds the servers. Required.
	Dir string
	// ImageDirs are the folders that image.source may name files in, besides
	// the folder "images" in Dir.
	ImageDirs []string
	// Private are further folders that no image may come from, such as the data of the
	// program.
	Private []string
	// Image is the image of a server that names none. If it is empty, each server must name
	// one.
	Image string
	// UncheckedImages allows image.checksum to be left out for images from web servers, and
	// from registries over plain HTTP.
	UncheckedImages bool
	// Fetch says where images may be fetched from.
	Fetch image.Policy
	// Accel is AccelAuto, AccelKVM or AccelTCG.
	Accel string
	// Binary is the QEMU to run; empty means DefaultBinary.
	Binary string
	// MachineProgram is the program that supervises each QEMU process. If empty, it is the program embedded in this
	// program, or drover-machine beside this program.
	MachineProgram string
	// GuestKernel is the folder of the kernel that boots container images; empty means guest beside this program.
	GuestKernel string
	// User is the user that root starts machines as. UserIDs is a range of user IDs, one for
	// each machine, which has the group of User: see launch.NewUsers. With neither, machines
	// run as the user of this program.
	User, UserIDs string
	// HostPorts are the host ports that machines may use, as in "80,30000-32767"; empty
	// means all.
	HostPorts string
	// Network is the range of the machines' own addresses. If empty, it is a range that this host does not use.
	Network string
	// Egress is EgressAllow, which "" means too, or EgressDeny. EgressDenied are ranges that guests never reach.
	Egress       string
	EgressDenied []string
	// Resolvers are the addresses of name servers, with or without a port; none means those of this host.
	Resolvers []string
	// ReserveMemory is the part of the host's memory that guests do not get, a quantity;
	// empty means the larger of 5 % and 512 MiB.
	ReserveMemory string
	// NamespaceMemory, NamespaceCPUs and NamespaceDisk are the shares of each namespace, as package shares parses them.
	NamespaceMemory, NamespaceCPUs, NamespaceDisk string
	// OutputBound is how much output of a container image's command is kept, of each stream; 0 means output.DefaultBound.
	OutputBound int64
	// JournalFile gets a line for every change: see package journal. Empty means none.
	JournalFile string
	// Clock is the time source; nil means the real clock.
	Clock clock.WithTicker
	Log   logr.Logger
	// Registerer receives the driver's metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Driver runs servers as QEMU machines.
type Driver struct {
	*guest.Guests
	Host    *instance.Host
	options Options

	watches   kit.Watches
	fetches   *download.Tracker
	hostPorts *hostports.Ports
}

var (
	_ driver.Driver          = (*Driver)(nil)
	_ driver.Identifier      = (*Driver)(nil)
	_ driver.Closer          = (*Driver)(nil)
	_ driver.Prober          = (*Driver)(nil)
	_ driver.Consoler        = (*Driver)(nil)
	_ driver.LogReader       = (*Driver)(nil)
	_ driver.Executor        = (*Driver)(nil)
	_ driver.Dialer          = (*Driver)(nil)
	_ driver.InterfaceLister = (*Driver)(nil)
	_ driver.NetworkReporter = (*Driver)(nil)
)

// minOutputBound is the least output that is kept of a stream.
const minOutputBound = 1 << 20

// New opens the driver's folder, and creates it if it is missing.
func New(o Options) (*Driver, error) {
	o = o.withDefaults()
	switch {
	case o.ClusterID == "":
		return nil, errors.New("the qemu driver needs a cluster id")
	case o.Dir == "":
		return nil, errors.New("the qemu driver needs a folder")
	case o.OutputBound < minOutputBound:
		return nil, fmt.Errorf("--qemu-log-max-size is %d: it must be %d bytes or more", o.OutputBound, minOutputBound)
	case o.Accel != AccelAuto && o.Accel != machine.AccelKVM && o.Accel != machine.AccelTCG:
		return nil, fmt.Errorf("the qemu driver's accelerator is %q: it must be %s, %s or %s", o.Accel, machine.AccelAuto, machine.AccelKVM, machine.AccelTCG)
	}
	dir, err := statedir.Open("the qemu driver's folder", o.Dir, instance.VMsDir, instance.RetainedDir, instance.NotificationsDir, exits.Dir, instance.AddressesDir, instance.BrokerDir, imagesDir, cacheDir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkSocketPaths(dir.Path()), disks.CheckDirs(o.ImageDirs, dir.Path(imagesDir), append([]string{dir.Path()}, o.Private...))); err != nil {
		return nil, err
	}
	ports, badPorts := hostports.Parse(o.HostPorts)
	reserve, badReserve := parseReserve(o.ReserveMemory)
	limits, badLimits := shares.ParseLimits(o.NamespaceMemory, o.NamespaceCPUs, o.NamespaceDisk)
	sources, badSources := image.NewSources(o.Fetch)
	users, badUsers := launch.NewUsers(o.User, o.UserIDs)
	if badUsers != nil {
		badUsers = fmt.Errorf("--qemu-uid-range: %w", badUsers)
	}
	network, badNetwork := addresses.ParseRange(o.Network, dir.Path(instance.AddressesDir))
	egress, badEgress := o.parseEgress()
	if err := errors.Join(badNetwork, badEgress, badPorts, badReserve, badLimits, badSources, badUsers); err != nil {
		return nil, err
	}
	host := o.newHost(users, dir)
	host.OpenPort, host.ReservedOf, host.GuestDir = ports.Open, reserve, o.GuestKernel
	host.EgressPolicy, host.OutputBound, host.Shares.Limits = egress, o.OutputBound, limits
	host.Addresses = &addresses.Pool{Range: network, Dir: dir.Path(instance.AddressesDir), IsGone: func(uid types.UID) bool { return host.InstanceOf(uid).IsGone() }}
	fetches := &download.Tracker{Clock: o.Clock, Stall: image.DefaultStall, Concurrency: download.DefaultConcurrency, Notify: host.Notify}
	host.Images = disks.NewImageStore(dir, cacheDir, o.Clock, fetches, sources)
	host.Images.Convert = converter.Converter{Program: func() (*os.File, error) { return converterProgram(host) }, StartAs: users.StartAs}.Convert
	host.Disks = disks.NewStore(dir.Path(instance.VMsDir), host.Images, append([]string{dir.Path(imagesDir)}, o.ImageDirs...))
	reportUsers(o.Log, users, dir.Path())
	if err := host.Images.MakeLock(); err != nil {
		return nil, fmt.Errorf("the qemu driver's images: %w", err)
	}
	registerDiskGauges(o.Registerer, host)
	return &Driver{Guests: guest.New(host), Host: host, options: o, fetches: fetches, hostPorts: ports}, nil
}

// converterProgram returns the program that converts container images, which is the one that follows each QEMU.
func converterProgram(host *instance.Host) (*os.File, error) {
	p, err := host.FindSupervisor()
	if err != nil {
		return nil, err
	}
	return p.File(), nil
}

// builtInFile is the built-in image's file in the folder of the kernel that boots it.
const builtInFile = "image.tar"

// guestKernelDir returns the folder of the kernel that boots container images.
func guestKernelDir(named string) string {
	program, err := os.Executable()
	if named != "" || err != nil {
		return named
	}
	return filepath.Join(filepath.Dir(program), "guest")
}

// reportUsers logs what keeps machines in a folder from being started, or makes their confinement weaker.
func reportUsers(log logr.Logger, users *launch.Users, folder string) {
	if err := users.Check(); err != nil {
		log.Error(err, "Machines cannot be started")
	}
	if !users.AreSeparate() {
		log.Info("Machines are confined in part: they run as the user of Drover", "cause", "only root can start them as others")
	}
	for _, exposure := range users.FindExposures(folder) {
		log.Info("Machines are confined in part: others have access", "cause", exposure)
	}
}

// Close cancels downloads in progress and waits for them. Machines keep running.
func (d *Driver) Close(ctx context.Context) error { return d.fetches.Close(ctx) }

// Abandon implements driver.Fetcher.
func (d *Driver) Abandon(ctx context.Context, uid types.UID) error {
	return d.fetches.Abandon(ctx, uid)
}

func (o Options) newHost(users *launch.Users, dir *statedir.Dir) *instance.Host {
	h := instance.NewHost(instance.Options{ClusterID: o.ClusterID, Accelerator: o.Accel, Binary: o.Binary, Users: users, Clock: o.Clock, Log: o.Log}, dir)
	h.InstallSupervisor = func() (*installation.Program, error) {
		return installation.InstallProgram(dir.Path(programsDir), o.MachineProgram)
	}
	return h
}

func (o Options) withDefaults() Options {
	if o.Accel == "" {
		o.Accel = machine.AccelAuto
	}
	if o.Binary == "" {
		o.Binary = DefaultBinary
	}
	if o.OutputBound == 0 {
		o.OutputBound = output.DefaultBound
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.GuestKernel = guestKernelDir(o.GuestKernel)
	o.Fetch.BuiltIn = filepath.Join(o.GuestKernel, builtInFile)
	return o
}

// maxSocketPath is the longest path that fits into a Unix socket's address.
const maxSocketPath = 107

// checkSocketPaths rejects a folder whose sockets would have paths too long for users'
// tools. The driver itself does not depend on the limit.
func checkSocketPaths(folder string) error {
	longest := filepath.Join(folder, instance.VMsDir, string(uuid.NewUUID()), machine.EventsSocket)
	if len(longest) <= maxSocketPath {
		return nil
	}
	return fmt.Errorf("the qemu driver's folder is %s: its path has %d bytes and may have %d, since sockets below it are limited to %d: name a shorter one by --qemu-dir, or by --data-dir of drover up",
		folder, len(folder), maxSocketPath-(len(longest)-len(folder)), maxSocketPath)
}

// EngineID returns the UUID of the folder, if there is a QEMU to run machines on.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return "", err
	}
	if err := d.Host.Program.Check(ctx); err != nil {
		return "", instance.ContractError(err)
	}
	return d.Host.StateDir.ID()
}
