// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Config is all that QEMU's command line depends on. Paths are absolute, or relative to the
// machine's directory.
type Config struct {
	UUID        string
	ID          string // part of QEMU's name
	Type        string // of the machine, with its version
	Accel       string
	CPUs        int64
	MemoryBytes int64
	Root        *Drive
	Volumes     []Volume
	Kernel      *Kernel
	Forwards    []Forward
	// Seed is the disk that cloud-init reads, empty for none.
	Seed string
	// Files are the files that the drives, the kernel and the seed name.
	Files *Files
}

// Drive is a disk of a machine: a qcow2 file, on top of an image if it has one.
type Drive struct {
	Path     string
	Backing  *Layer
	ReadOnly bool
}

// Volume is a further disk; the guest sees its name as the serial number.
type Volume struct {
	Name string
	Drive
}

// Formats of disks and images, by QEMU's names for them.
const (
	formatQcow2 = "qcow2"
	formatRaw   = "raw"
)

// RootNode is the name of the root disk in QEMU.
const RootNode = "root"

// VolumeNode returns the name of a volume in QEMU.
func VolumeNode(name string) string { return "volume-" + name }

// SeedSerial is the serial number of the disk that cloud-init reads. No volume should have
// a name with capital letters. A guest finds the disk by its label.
const SeedSerial = seedLabel

// seedArguments returns the disk that cloud-init reads.
func seedArguments(path string) []string {
	node := Object{
		"driver": formatRaw, "node-name": "seed", "read-only": true,
		"file": Object{"driver": "file", "filename": path, "read-only": true},
	}
	return []string{"-blockdev", node.text(), "-device", diskDevice("seed", Object{"serial": SeedSerial})}
}

// Kernel is booted in place of the one on the disk.
type Kernel struct {
	Path, Initrd, Cmdline string
}

// Layer is an image that a disk stands on.
type Layer struct {
	Path, Format string
}

// arguments returns the command line. Text that a user chose is in JSON or in an argument
// of its own, never in an option with commas.
func (c Config) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-name", "drover-" + c.ID,
		"-uuid", c.UUID,
		"-machine", c.Type + ",usb=off,vmport=off,dump-guest-core=off",
		"-accel", c.Accel,
		"-cpu", cpuModel(c.Accel),
		"-smp", strconv.FormatInt(c.CPUs, 10),
		"-m", strconv.FormatInt(c.MemoryBytes/(1<<20), 10) + "M",
		"-S", "-action", "shutdown=pause,panic=pause",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-chardev", socketDevice("ctl", controlFD),
		"-mon", "chardev=ctl,mode=control",
		"-chardev", socketDevice("events", eventsFD),
		"-mon", "chardev=events,mode=control",
		"-chardev", socketDevice("serial", serialFD) + ",logfile=" + fdsetName(serialLogFD) + ",logappend=on",
		"-serial", "chardev:serial",
		"-device", Object{"driver": "pvpanic"}.text(),
		"-device", Object{"driver": "virtio-rng-pci"}.text(),
	}
	args = append(args, fdsetArguments(serialLogFD)...)
	args = append(args, c.networkArguments()...)
	args = append(args, c.Files.arguments()...)
	if c.Root != nil {
		args = append(args, c.Root.arguments(RootNode, Object{"bootindex": 1})...)
	}
	for _, v := range c.Volumes {
		args = append(args, v.arguments(VolumeNode(v.Name), Object{"serial": v.Name})...)
	}
	if c.Seed != "" {
		args = append(args, seedArguments(c.Seed)...)
	}
	if c.Kernel != nil {
		args = append(args, c.Kernel.arguments()...)
	}
	return append(args, "-device", balloonDevice.text())
}

// socketDevice returns a character device that serves the socket of a descriptor.
func socketDevice(id string, fd int) string {
	return fmt.Sprintf("socket,id=%s,fd=%d,server=on,wait=off", id, fd)
}

func cpuModel(accel string) string {
	if accel == AccelKVM {
		return "host"
	}
	return "max"
}

func (k Kernel) arguments() []string {
	args := []string{"-kernel", k.Path, "-append", k.Cmdline}
	if k.Initrd != "" {
		args = append(args, "-initrd", k.Initrd)
	}
	return args
}

// Object is a JSON object; its text has the keys in order.
type Object map[string]any

func (o Object) text() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers can always be marshaled
	}
	return string(text)
}

// networkArguments returns the arguments of QEMU's user network. The guest reaches out through the
// host, and is reached only by the forwarded ports. It does not boot from the network.
func (c Config) networkArguments() []string {
	var netdev strings.Builder
	netdev.WriteString("user,id=net")
	for _, f := range c.Forwards {
		netdev.WriteString(",hostfwd=" + f.hostfwdRule())
	}
	return []string{
		"-netdev", netdev.String(),
		"-device", Object{"driver": "virtio-net-pci", "netdev": "net", "mac": MACAddress(c.UUID), "romfile": ""}.text(),
	}
}

// MACAddress derives a MAC address from a UID, with the prefix of QEMU's addresses.
func MACAddress(uuid string) string {
	sum := sha256.Sum256([]byte(uuid))
	return fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3])
}

// arguments returns the arguments of a disk. Its backing file is named in full, so that
// QEMU follows no pointer in a file.
func (d Drive) arguments(name string, device Object) []string {
	node := Object{
		"driver": formatQcow2, "node-name": name, "discard": "unmap",
		"file":    Object{"driver": "file", "filename": d.Path, "discard": "unmap"},
		"backing": nil,
	}
	if d.ReadOnly {
		node["read-only"] = true
	}
	if d.Backing != nil {
		node["backing"] = d.Backing.blockNode()
	}
	return []string{"-blockdev", node.text(), "-device", diskDevice(name, device)}
}

// diskDevice returns the device that the guest sees of a disk. An error of the host's
// disk pauses the guest. A guest that got the error would make its file system read-only
// and lose what it could not write, although the error may be over soon, as that of a
// quota or of a network.
func diskDevice(name string, device Object) string {
	device["driver"], device["drive"], device["id"] = "virtio-blk-pci", name, "disk-"+name
	device["werror"], device["rerror"] = "stop", "stop"
	return device.text()
}

func (l Layer) blockNode() Object {
	node := Object{
		"driver": l.Format, "read-only": true,
		"file": Object{"driver": "file", "filename": l.Path, "read-only": true},
	}
	if l.Format == formatQcow2 {
		node["backing"] = nil
	}
	return node
}
