// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

// MachineConfig describes a machine: all that QEMU's command line depends on. It names files by the
// numbers of their descriptors in QEMU, and no path.
type MachineConfig struct {
	UUID        string   `json:"uuid"`
	ID          string   `json:"id"`          // part of QEMU's name
	Type        string   `json:"type"`        // of the machine, with its version
	Accel       string   `json:"accelerator"` // AccelKVM or AccelTCG
	CPUs        int64    `json:"cpus"`
	MemoryBytes int64    `json:"memoryBytes"`
	Root        *Drive   `json:"root,omitempty"`
	Volumes     []Volume `json:"volumes,omitempty"`
	Kernel      *Kernel  `json:"kernel,omitempty"`
	// SeedFD is the disk that cloud-init reads, 0 for none.
	SeedFD int `json:"seedFD,omitempty"`
	// AgentFD is a listening socket that leads to the guest's agent, 0 for none.
	AgentFD int `json:"agentFD,omitempty"`
	// Guest is set for the machine of a container image, which has a kernel and an agent too.
	Guest *Guest `json:"guest,omitempty"`
}

// Drive is a disk of a machine: a qcow2 file, on top of an image if it has one, or a raw file.
type Drive struct {
	FD int `json:"fd"`
	// Format is "raw" for a raw file. A description of a program that does not know the field
	// has none, and means a qcow2 file. A program that does not know it refuses a description
	// that has one.
	Format   string `json:"format,omitempty"`
	Backing  *Layer `json:"backing,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Volume is a further disk; the guest sees its name as the serial number.
type Volume struct {
	Name string `json:"name"`
	Drive
}

// Layer is an image that a disk stands on.
type Layer struct {
	FD     int    `json:"fd"`
	Format string `json:"format"`
}

// Kernel is booted in place of the one on the disk.
type Kernel struct {
	FD       int    `json:"fd"`
	InitrdFD int    `json:"initrdFD,omitempty"` // 0 for none
	Cmdline  string `json:"cmdline,omitempty"`
}

// Accelerators that a machine runs under.
const (
	// AccelKVM means virtualisation by the processor.
	AccelKVM = "kvm"
	// AccelTCG means emulation, which works everywhere and is slow.
	AccelTCG = "tcg"
)

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
const SeedSerial = "CIDATA"

// seedArguments returns the disk that cloud-init reads.
func seedArguments(fd int) []string {
	node := Object{
		"driver": formatRaw, "node-name": "seed", "read-only": true,
		"file": Object{"driver": "file", "filename": fdsetName(fd), "read-only": true},
	}
	return []string{"-blockdev", node.Text(), "-device", diskDevice("seed", Object{"serial": SeedSerial})}
}

// Arguments returns QEMU's arguments for a description; files are those that it names, opened. It
// refuses what QEMU would misunderstand.
func (c MachineConfig) Arguments(files *Files) ([]string, error) {
	if err := c.check(files); err != nil {
		return nil, err
	}
	return c.arguments(), nil
}

// Sandbox is the filter that QEMU applies to itself.
const Sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// arguments returns the command line. Text that a user chose is in JSON or in a separate
// argument, never in an option with commas.
func (c MachineConfig) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-name", "drover-" + c.ID,
		"-uuid", c.UUID,
		"-machine", c.Type + ",usb=off,vmport=off,dump-guest-core=off",
		"-accel", AcceleratorOption(c.Accel),
		"-cpu", CPUModel(c.Accel),
		"-smp", strconv.FormatInt(c.CPUs, 10),
		"-m", strconv.FormatInt(c.MemoryBytes/(1<<20), 10) + "M",
		"-S", "-action", "shutdown=pause,panic=pause",
		"-sandbox", Sandbox,
		"-chardev", socketDevice("ctl", controlFD),
		"-mon", "chardev=ctl,mode=control",
		"-chardev", socketDevice("events", eventsFD),
		"-mon", "chardev=events,mode=control",
		"-chardev", socketDevice(serialChardev, serialFD) + ",logfile=" + fdsetName(serialLogFD) + ",logappend=on",
		"-device", Object{"driver": "pvpanic"}.Text(),
		"-device", Object{"driver": "virtio-rng-pci"}.Text(),
	}
	args = append(args, c.consoleArguments()...)
	args = append(args, fdsetArguments(serialLogFD)...)
	args = append(args, c.networkArguments()...)
	for _, fd := range c.setFDs() {
		args = append(args, fdsetArguments(fd)...)
	}
	if c.Root != nil {
		args = append(args, c.Root.arguments(RootNode, c.rootDevice())...)
	}
	for _, v := range c.Volumes {
		args = append(args, v.arguments(VolumeNode(v.Name), Object{"serial": v.Name})...)
	}
	if c.SeedFD != 0 {
		args = append(args, seedArguments(c.SeedFD)...)
	}
	if c.Guest != nil {
		args = append(args, c.Guest.diskArguments()...)
	}
	if c.Kernel != nil {
		args = append(args, c.Kernel.arguments()...)
	}
	args = append(args, "-device", balloonDevice.Text())
	if c.AgentFD != 0 {
		args = append(args, agentArguments(c.AgentFD, c.agentPort())...)
	}
	if c.Guest != nil {
		args = append(args, c.Guest.portArguments()...)
	}
	return args
}

// rootDevice returns what the guest sees of the root disk.
func (c MachineConfig) rootDevice() Object {
	if c.Guest != nil {
		return Object{"serial": guestconfig.DataSerial}
	}
	return Object{"bootindex": 1}
}

// serialChardev is the name of the serial console in QEMU.
const serialChardev = "serial"

// consoleArguments returns what leads to the serial port.
func (c MachineConfig) consoleArguments() []string {
	if c.Guest != nil {
		return kernelLogArguments()
	}
	return []string{"-serial", "chardev:" + serialChardev}
}

// agentPort returns the name by which the agent finds its port.
func (c MachineConfig) agentPort() string {
	if c.Guest != nil {
		return guestconfig.AgentPort
	}
	return "org.qemu.guest_agent.0"
}

// BalloonInterval is how often QEMU asks the guest for its memory statistics.
const BalloonInterval = 5 * time.Second

// balloonDevice is a device by which the guest reports its memory. It takes none from the
// guest.
var balloonDevice = Object{
	"driver": "virtio-balloon-pci", "id": "balloon", "guest-stats-polling-interval": int(BalloonInterval / time.Second),
}

// agentSlot is the PCI slot of the guest agent's device, the last one that machines have. QEMU
// gives the other devices the lowest free slots in the order of the command line, so this one
// must neither have such a slot nor come before them: guests name network interfaces by
// slots. A later device of its kind is another function of this slot, and any other device
// that machines get later has a fixed address too.
const agentSlot = "1e"

// AgentChardev is the name of the guest agent's socket in QEMU.
const AgentChardev = "agent"

// agentArguments returns the device by which the guest's agent is reached, by a port of a name.
func agentArguments(fd int, name string) []string {
	controller := Object{"driver": "virtio-serial-pci", "id": "serial", "bus": "pcie.0", "addr": agentSlot + ".0", "multifunction": true}
	return slices.Concat([]string{"-chardev", socketDevice(AgentChardev, fd), "-device", controller.Text()}, portArguments(AgentChardev, name))
}

// portArguments returns a port of the agent's device, which a program in the guest finds by its name.
func portArguments(chardev, name string) []string {
	return []string{"-device", Object{"driver": "virtserialport", "bus": "serial.0", "chardev": chardev, "name": name}.Text()}
}

// socketDevice returns a character device that serves the socket of a descriptor.
func socketDevice(id string, fd int) string {
	return fmt.Sprintf("socket,id=%s,fd=%d,server=on,wait=off", id, fd)
}

// translationCacheMiB is how much translated code QEMU keeps for an emulated guest (tb-size). When the cache is
// full, QEMU empties it and translates again. QEMU's default, an eighth of the host's memory and at most 1 GiB
// (accel/tcg/region.c), is more than Drover reserves for QEMU itself: memory.OverheadTCG, and the limit of a pod.
const translationCacheMiB = 64

// AcceleratorOption returns the value of QEMU's option -accel.
func AcceleratorOption(accel string) string {
	if accel == AccelTCG {
		return fmt.Sprintf("%s,tb-size=%d", accel, translationCacheMiB)
	}
	return accel
}

// CPUModel returns the model of the guest's CPUs.
func CPUModel(accel string) string {
	if accel == AccelKVM {
		return "host"
	}
	return "max"
}

func (k Kernel) arguments() []string {
	args := []string{"-kernel", reopenName(k.FD), "-append", k.Cmdline}
	if k.InitrdFD != 0 {
		args = append(args, "-initrd", reopenName(k.InitrdFD))
	}
	return args
}

// Object is a JSON object.
type Object map[string]any

// Text returns the object as JSON, its keys in order.
func (o Object) Text() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers can always be marshaled
	}
	return string(text)
}

// networkArguments returns the guest's network interface, whose frames QEMU carries over a socket that others connect to.
// QEMU has no other network. The guest does not boot from it.
func (c MachineConfig) networkArguments() []string {
	return []string{
		"-netdev", fmt.Sprintf("stream,id=net,server=on,addr.type=fd,addr.str=%d", networkFD),
		"-device", Object{"driver": "virtio-net-pci", "netdev": "net", "mac": MACAddress(c.UUID).String(), "romfile": ""}.Text(),
	}
}

// MACAddress derives a MAC address from a UID, with the prefix of QEMU's addresses.
func MACAddress(uuid string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(uuid))
	return append(net.HardwareAddr{0x52, 0x54}, sum[:4]...)
}

// arguments returns the arguments of a disk. Its backing file is named in full, so that
// QEMU follows no pointer in a file.
func (d Drive) arguments(name string, device Object) []string {
	node := Object{
		"driver": cmp.Or(d.Format, formatQcow2), "node-name": name, "discard": "unmap",
		"file": Object{"driver": "file", "filename": fdsetName(d.FD), "discard": "unmap"},
	}
	if d.Format != formatRaw {
		node["backing"] = nil
	}
	if d.ReadOnly {
		node["read-only"] = true
	}
	if d.Backing != nil {
		node["backing"] = d.Backing.blockNode()
	}
	return []string{"-blockdev", node.Text(), "-device", diskDevice(name, device)}
}

// diskDevice returns the device by which the guest sees a disk. An error of the host's
// disk pauses the guest. A guest that got the error would make its file system read-only
// and lose the data that it could not write, although the error may be over soon, for
// example if a quota or a network caused it.
func diskDevice(name string, device Object) string {
	device["driver"], device["drive"], device["id"] = "virtio-blk-pci", name, "disk-"+name
	device["werror"], device["rerror"] = "stop", "stop"
	return device.Text()
}

func (l Layer) blockNode() Object {
	node := Object{
		"driver": l.Format, "read-only": true,
		"file": Object{"driver": "file", "filename": fdsetName(l.FD), "read-only": true},
	}
	if l.Format == formatQcow2 {
		node["backing"] = nil
	}
	return node
}
