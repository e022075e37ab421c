// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/faultinject"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/image"
)

// Settings are the drivers' flags.
type Settings struct {
	DockerImage string

	QEMUDir       string
	QEMUImageDirs []string
	QEMUImage     string
	QEMUUnchecked bool
	QEMUAccel     string
	QEMUHostPorts string
	QEMUReserve   string
	QEMUBinary    string
	QEMUJournal   string

	ImageHosts     []string
	ImagePlainHTTP []string
	ImageMaxSize   resource.QuantityValue

	// Private are the program's own folders, from which no machine gets an image.
	// There is no flag for it.
	Private []string

	FakeDir         string
	FakeBootTime    time.Duration
	FakeStopTime    time.Duration
	FakeLatency     time.Duration
	FakeFailureRate float64
	FakeFaults      string
	FakeJournal     string
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		DockerImage: "nginx", QEMUAccel: qemu.AccelAuto, QEMUBinary: qemu.DefaultBinary,
		ImageMaxSize: resource.QuantityValue{Quantity: *resource.NewQuantity(image.DefaultMaxSize, resource.BinarySI)},
	}
}

// AddFlags adds the drivers' flags.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.DockerImage, "docker-image", s.DockerImage, "docker: image of a VirtualMachine that names none")
	fs.StringVar(&s.QEMUDir, "qemu-dir", s.QEMUDir, "qemu: folder that holds the machines, one directory each, and images; needed to run any")
	fs.StringSliceVar(&s.QEMUImageDirs, "qemu-image-dirs", s.QEMUImageDirs, "qemu: folders that image.source may name files in, besides images in --qemu-dir: absolute paths, apart from where Drover keeps its own files")
	fs.StringVar(&s.QEMUImage, "qemu-image", s.QEMUImage, "qemu: image of a VirtualMachine that names none; empty means that each has to name one")
	fs.BoolVar(&s.QEMUUnchecked, "qemu-unchecked-images", s.QEMUUnchecked, "qemu: take images from web servers without image.checksum too: whoever can change what a server sends, chooses what is booted")
	fs.StringVar(&s.QEMUAccel, "qemu-accel", s.QEMUAccel, "qemu: kvm, tcg (emulation), or auto for kvm where a guest really runs under it")
	fs.StringVar(&s.QEMUHostPorts, "qemu-host-ports", s.QEMUHostPorts, "qemu: ports of the host that VirtualMachines may have, asked for or chosen, as in 80,30000-32767; empty means all")
	fs.StringVar(&s.QEMUReserve, "qemu-reserve-memory", s.QEMUReserve, "qemu: memory of the host that no machine is given, such as 2Gi; empty means the larger of 5 % and 512Mi")
	fs.StringVar(&s.QEMUBinary, "qemu-binary", s.QEMUBinary, "qemu: the QEMU to run")
	fs.StringVar(&s.QEMUJournal, "qemu-journal", s.QEMUJournal, "qemu: file to which every change of a machine is appended as a line of JSON, for tests; empty means none")
	fs.StringSliceVar(&s.ImageHosts, "image-hosts", s.ImageHosts, "qemu: names, addresses and CIDRs of hosts that images may be fetched from though their addresses are private or loopback; no proxy needs to be named")
	fs.StringSliceVar(&s.ImagePlainHTTP, "image-plain-http-registries", s.ImagePlainHTTP, "qemu: registries of oci:// images, with the port if they have one, that are spoken to without TLS, and without logins")
	fs.Var(&s.ImageMaxSize, "image-max-size", "qemu: size that an image which is fetched may have, its layers decompressed")
	fs.StringVar(&s.FakeDir, "fake-dir", s.FakeDir, "fake: folder that holds one file a server, shared by all who use it; empty keeps the servers in memory")
	fs.DurationVar(&s.FakeBootTime, "fake-boot-time", s.FakeBootTime, "fake: how long a server takes to boot")
	fs.DurationVar(&s.FakeStopTime, "fake-shutdown-time", s.FakeStopTime, "fake: how long a server takes to stop when it is asked to")
	fs.DurationVar(&s.FakeLatency, "fake-latency", s.FakeLatency, "fake: how long each call takes")
	fs.Float64Var(&s.FakeFailureRate, "fake-failure-rate", s.FakeFailureRate, "fake: share of calls that fail, 0 to 1")
	fs.StringVar(&s.FakeFaults, "fake-faults", s.FakeFaults, "fake: file that names faults by VirtualMachine, read when it changes")
	fs.StringVar(&s.FakeJournal, "fake-journal", s.FakeJournal, "fake: file to which every change of a server is appended as a line of JSON, for tests; empty means none")
}

func openDocker(o Options) (driver.Driver, error) {
	return docker.New(docker.Options{ClusterID: o.ClusterID, Image: o.DockerImage, Log: o.Log, Clock: o.Clock})
}

func openQEMU(o Options) (driver.Driver, error) {
	d, err := qemu.New(qemu.Options{
		ClusterID: o.ClusterID, Dir: o.QEMUDir, ImageDirs: o.QEMUImageDirs, Private: o.Private, Image: o.QEMUImage, UncheckedImages: o.QEMUUnchecked, Accel: o.QEMUAccel, Binary: o.QEMUBinary,
		HostPorts: o.QEMUHostPorts, ReserveMemory: o.QEMUReserve,
		Log: o.Log, Clock: o.Clock, Registerer: o.Registerer,
		Fetch: image.Policy{Hosts: o.ImageHosts, PlainHTTP: o.ImagePlainHTTP, MaxSize: o.ImageMaxSize.Value()},
	})
	if err != nil {
		return nil, err
	}
	return o.journaled(d, o.QEMUJournal)
}

func openFake(o Options) (driver.Driver, error) {
	d, err := fake.New(fake.Options{
		ClusterID: o.ClusterID, Dir: o.FakeDir, BootTime: o.FakeBootTime, ShutdownTime: o.FakeStopTime, Latency: o.FakeLatency,
		FailureRate: o.FakeFailureRate, Log: o.Log, Clock: o.Clock,
	})
	if err != nil {
		return nil, err
	}
	// Inside of the faults: a call that a fault intercepts changes nothing.
	inner, err := o.journaled(d, o.FakeJournal)
	if err != nil || o.FakeFaults == "" {
		return inner, err
	}
	return faultinject.Wrap(inner, o.FakeFaults, o.Clock, o.Log), nil
}

// journaled records the changes of d in a journal if a test asked for one.
func (o Options) journaled(d driver.Driver, path string) (driver.Driver, error) {
	if path == "" {
		return d, nil
	}
	return journal.Wrap(d, path, o.ClusterID, o.Clock, o.Log)
}
