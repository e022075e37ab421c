// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/addresses"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/output"
)

// defaultShare is the share of a namespace in memory, CPUs and disk, which leaves as much to all others.
const defaultShare = "50%"

// DefaultOptions returns the options that flags can change.
func DefaultOptions() *Options {
	return &Options{
		Image: source.BuiltInText, Accel: AccelAuto, Binary: DefaultBinary, Egress: EgressAllow, User: launch.DefaultUser, UserIDs: launch.DefaultUserIDs,
		NamespaceMemory: defaultShare, NamespaceCPUs: defaultShare, NamespaceDisk: defaultShare,
		Fetch: image.Policy{MaxSize: image.DefaultMaxSize}, OutputBound: output.DefaultBound,
	}
}

// AddFlags adds the flags of the driver.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Dir, "qemu-dir", o.Dir, "qemu: folder that holds the machines, one directory each, and images; needed to run any")
	fs.StringSliceVar(&o.ImageDirs, "qemu-image-dirs", o.ImageDirs, "qemu: folders that image.source may name files in, besides images in --qemu-dir: absolute paths, apart from the folders of Drover's files")
	fs.StringVar(&o.Image, "qemu-image", o.Image, "qemu: image of a VirtualMachine that names none: a path, a container image, cloud://NAME, oci://REFERENCE, or the small one beside the kernel of container images; a web server's address needs --qemu-unchecked-images; empty means that each has to name one")
	fs.BoolVar(&o.UncheckedImages, "qemu-unchecked-images", o.UncheckedImages, "qemu: take images from web servers without image.checksum too: whoever can change what a server sends, chooses what is booted")
	fs.StringVar(&o.Accel, "qemu-accel", o.Accel, "qemu: kvm, tcg (emulation), or auto for kvm where a test guest runs under it within 3 s")
	fs.StringVar(&o.HostPorts, "qemu-host-ports", o.HostPorts, "qemu: ports of the host that VirtualMachines may have, asked for or chosen, as in 80,30000-32767; empty means all")
	fs.StringVar(&o.Network, "qemu-network", o.Network, "qemu: private IPv4 range of the machines' addresses, in which this host has neither an address nor a route; empty means 10.213.0.0/16, or another where this host uses that")
	fs.StringVar(&o.Egress, "qemu-egress", o.Egress, "qemu: allow or deny: whether guests may connect to other hosts and look up their names")
	fs.StringSliceVar(&o.EgressDenied, "qemu-egress-denied", o.EgressDenied, "qemu: IPv4 ranges that guests never connect to, such as the ranges of a cluster's Services and of containers on this host")
	fs.StringSliceVar(&o.Resolvers, "qemu-resolvers", o.Resolvers, "qemu: up to three IP addresses of name servers, with or without a port, that are asked for names of the outside; none means those of this host's /etc/resolv.conf")
	fs.StringVar(&o.ReserveMemory, "qemu-reserve-memory", o.ReserveMemory, "qemu: memory of the host that no machine is given, such as 2Gi; empty means the larger of 5 % and 512Mi")
	fs.StringVar(&o.NamespaceMemory, "qemu-namespace-memory", o.NamespaceMemory, "qemu: memory that machines of one namespace may have while they run: a part of the memory for machines, or an amount such as 8Gi; 0 or 100% means no limit")
	fs.StringVar(&o.NamespaceCPUs, "qemu-namespace-cpus", o.NamespaceCPUs, "qemu: CPUs that machines of one namespace may have while they run: a part of ten for each CPU of the host, or a number; 0 or 100% means no limit")
	fs.StringVar(&o.NamespaceDisk, "qemu-namespace-disk", o.NamespaceDisk, "qemu: how large all disks of one namespace may be together: a part of the file system of --qemu-dir, or an amount such as 500Gi, also a larger one; 0 or 100% means no limit")
	fs.Var(sizeFlag{&o.OutputBound}, "qemu-log-max-size", "qemu: how much output of a container image's command is kept, of standard output and of standard error each; the oldest goes")
	fs.StringVar(&o.Binary, "qemu-binary", o.Binary, "qemu: program that runs a machine; every user must be able to execute it if Drover is root")
	fs.StringVar(&o.GuestKernel, "qemu-kernel", o.GuestKernel, "qemu: folder of the kernel that boots container images, with vmlinux, its modules, initramfs, kernel.json and image.tar; empty means the folder guest beside this program")
	fs.StringVar(&o.User, "qemu-user", o.User, "qemu: user that machines run as if Drover is root; with --qemu-uid-range they have its group alone. Otherwise machines run as Drover's user")
	fs.StringVar(&o.UserIDs, "qemu-uid-range", o.UserIDs, "qemu: unused user IDs of this host, as FIRST-LAST, of which each machine gets one if Drover is root; empty means that all run as --qemu-user")
	fs.StringVar(&o.JournalFile, "qemu-journal", o.JournalFile, "qemu: file to which every change of a machine is appended as a line of JSON, for tests; empty means none")
	_ = fs.MarkHidden("qemu-journal")
	fs.StringSliceVar(&o.Fetch.Hosts, "image-hosts", o.Fetch.Hosts, "qemu, pod: names, addresses and CIDRs of hosts that images may be fetched from, and their tags resolved at, though their addresses are private or loopback; no proxy needs to be named")
	fs.StringSliceVar(&o.Fetch.PlainHTTP, "image-plain-http-registries", o.Fetch.PlainHTTP, "qemu, pod: registries of oci:// images, with the port if they have one, that are spoken to without TLS, and without logins")
	fs.StringVar(&o.Fetch.Catalogue, "image-catalogue", o.Fetch.Catalogue, "qemu: file with names of cloud images for image.source, beside those that Drover has and in place of those of the same name; read at the start")
	fs.Var(sizeFlag{&o.Fetch.MaxSize}, "image-max-size", "qemu, pod: size that an image which is fetched may have, as it is sent and decompressed")
}

// sizeFlag is a flag for a number of bytes, written as a quantity.
type sizeFlag struct{ bytes *int64 }

// Set implements pflag.Value.
func (f sizeFlag) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err == nil {
		*f.bytes = q.Value()
	}
	return err
}

func (f sizeFlag) String() string { return resource.NewQuantity(*f.bytes, resource.BinarySI).String() }

// Type returns the word for the value in the help text.
func (f sizeFlag) Type() string { return "quantity" }

// DataDir returns the option that names the driver's folder.
func (o *Options) DataDir() *string { return &o.Dir }

// CheckEarly refuses a folder whose path is too long for sockets, and networks that no machine can have, before the
// driver is opened.
func (o *Options) CheckEarly() error {
	_, badNetwork := addresses.ParseRange(o.Network, filepath.Join(o.Dir, instance.AddressesDir))
	_, badEgress := o.parseEgress()
	err := errors.Join(badNetwork, badEgress)
	if o.Dir == "" {
		return err
	}
	path, badPath := filepath.Abs(o.Dir)
	if badPath == nil {
		badPath = checkSocketPaths(path)
	}
	return errors.Join(badPath, err)
}

// setUsers decides which users machines run as. Only root can start them as another user, and root
// must: a guest that breaks out would have all rights.
func (o *Options) setUsers() error {
	isRoot := os.Geteuid() == 0
	switch {
	case isRoot && o.User == "":
		return errors.New("--qemu-user is empty: Drover is root, so machines need another user")
	case !isRoot && o.User != "" && o.User != launch.DefaultUser:
		return fmt.Errorf("--qemu-user is %s: only root can start machines as another user, and Drover is not root", o.User)
	case !isRoot:
		o.User, o.UserIDs = "", ""
	}
	return nil
}

// Open opens the driver in env, with its journal.
func (o *Options) Open(env driver.Environment) (driver.Driver, error) {
	opened := *o
	opened.ClusterID, opened.Private = env.ClusterID, env.OwnDirs
	opened.Clock, opened.Log, opened.Registerer = env.Clock, env.Log, env.Registerer
	if err := opened.setUsers(); err != nil {
		return nil, err
	}
	d, err := New(opened)
	switch {
	case err != nil:
		return nil, err
	case o.JournalFile == "":
		return d, nil
	}
	return journal.Wrap(d, o.JournalFile, env.ClusterID, env.Clock, env.Log)
}
