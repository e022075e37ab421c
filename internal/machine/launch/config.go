// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

// MachineConfig has everything that determines QEMU's command line. It names files by their
// descriptors in QEMU, and contains no path.
type MachineConfig struct {
	// ID identifies the QEMU on its command line: see NameOf. UUID and MAC belong to the machine, and its guest sees them.
	ID          string   `json:"id"`
	UUID        string   `json:"uuid"`
	MAC         string   `json:"mac"`
	Type        string   `json:"type"`        // the machine type, with its version
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
	// Guest is set for the machine of a container image. Kernel and AgentFD are then set too.
	Guest *Guest `json:"guest,omitempty"`
}

// Drive is a disk of a machine: a qcow2 file, which may have a backing image, or a raw file.
type Drive struct {
	FD int `json:"fd"`
	// Format is "raw" for a raw file, and empty for a qcow2 file, as in descriptions of earlier
	// versions, which lack the field.
	Format   string `json:"format,omitempty"`
	Backing  *Layer `json:"backing,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Volume is an additional disk. The guest sees its name as the serial number.
type Volume struct {
	Name string `json:"name"`
	Drive
}

// Layer is the backing image of a disk.
type Layer struct {
	FD     int    `json:"fd"`
	Format string `json:"format"`
}

// Kernel is booted in place of the kernel on the disk.
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

// Formats of disks and images, by QEMU's driver names.
const (
	formatQcow2 = "qcow2"
	formatRaw   = "raw"
)

// RootNode is the QEMU node name of the root disk.
const RootNode = "root"

// VolumeNode returns the QEMU node name of a volume.
func VolumeNode(name string) string { return "volume-" + name }

// SeedSerial is the serial number of the disk that cloud-init reads. It has capital letters,
// so that no volume has the same name. cloud-init finds the disk by its label.
const SeedSerial = "CIDATA"

// seedArguments returns the arguments for the disk that cloud-init reads.
func seedArguments(fd int) []string {
	node := Object{
		"driver": formatRaw, "node-name": "seed", "read-only": true,
		"file": Object{"driver": "file", "filename": fdsetName(fd), "read-only": true},
	}
	return []string{"-blockdev", node.Text(), "-device", diskDevice("seed", Object{"serial": SeedSerial})}
}

// Arguments returns QEMU's arguments. It fails for a configuration that QEMU would misunderstand.
// files are the open files whose descriptors the configuration names.
func (c MachineConfig) Arguments(files *Files) ([]string, error) {
	if err := c.check(files); err != nil {
		return nil, err
	}
	return c.arguments(), nil
}

// Sandbox is the value of QEMU's option -sandbox.
const Sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// arguments returns the command line. Text from users is passed as JSON or as a separate
// argument, never in a comma-separated option.
func (c MachineConfig) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-name", NameOf(c.ID),
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
		args = append(args, c.Guest.modulesArguments()...)
		args = append(args, c.Guest.filesArguments()...)
	}
	return args
}

// rootDevice returns the properties of the root disk's device.
func (c MachineConfig) rootDevice() Object {
	if c.Guest != nil {
		return Object{"serial": guestconfig.DataSerial}
	}
	return Object{"bootindex": 1}
}

// serialChardev is the chardev of the serial console.
const serialChardev = "serial"

// consoleArguments returns the arguments for the serial port.
func (c MachineConfig) consoleArguments() []string {
	if c.Guest != nil {
		return kernelLogArguments()
	}
	return []string{"-serial", "chardev:" + serialChardev}
}

// agentPort returns the name of the virtio-serial port that the agent opens.
func (c MachineConfig) agentPort() string {
	if c.Guest != nil {
		return guestconfig.AgentPort
	}
	return "org.qemu.guest_agent.0"
}

// BalloonInterval is how often QEMU asks the guest for its memory statistics.
const BalloonInterval = 5 * time.Second

// balloonDevice lets the guest report its memory usage. It is never inflated.
var balloonDevice = Object{
	"driver": "virtio-balloon-pci", "id": "balloon", "guest-stats-polling-interval": int(BalloonInterval / time.Second),
}

// agentSlot is the PCI slot of the guest agent's device, the last slot of a machine. Guests name
// network interfaces by slots, so the slots of existing devices must never change. QEMU gives
// devices without an address the lowest free slots. Therefore every device that is added later
// must have a fixed address, such as another function of this slot.
const agentSlot = "1e"

// AgentChardev is the chardev of the guest agent's socket.
const AgentChardev = "agent"

// agentArguments returns the virtio-serial controller, and the agent's port with a name.
func agentArguments(fd int, name string) []string {
	controller := Object{"driver": "virtio-serial-pci", "id": "serial", "bus": "pcie.0", "addr": agentSlot + ".0", "multifunction": true}
	return slices.Concat([]string{"-chardev", socketDevice(AgentChardev, fd), "-device", controller.Text()}, portArguments(AgentChardev, name))
}

// portArguments returns a port of the virtio-serial controller. A program in the guest finds it by its name.
func portArguments(chardev, name string) []string {
	return []string{"-device", Object{"driver": "virtserialport", "bus": "serial.0", "chardev": chardev, "name": name}.Text()}
}

// socketDevice returns a chardev that accepts connections to an inherited listening socket.
func socketDevice(id string, fd int) string {
	return fmt.Sprintf("socket,id=%s,fd=%d,server=on,wait=off", id, fd)
}

// translationCacheMiB is the size of QEMU's cache of translated code for an emulated guest (tb-size). When the cache is
// full, QEMU empties it and translates again. QEMU's default, an eighth of the host's memory and at most 1 GiB
// (accel/tcg/region.c), would exceed the memory that Drover reserves for QEMU: memory.OverheadTCG, and a pod's limit.
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

// Text returns the object as JSON with sorted keys.
func (o Object) Text() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers can always be marshaled
	}
	return string(text)
}

// networkArguments returns the guest's network interface. QEMU passes its frames to the client of an inherited listening
// socket, and has no other access to a network. Without a romfile the guest does not boot from the network.
func (c MachineConfig) networkArguments() []string {
	return []string{
		"-netdev", fmt.Sprintf("stream,id=net,server=on,addr.type=fd,addr.str=%d", networkFD),
		"-device", Object{"driver": "virtio-net-pci", "netdev": "net", "mac": c.MAC, "romfile": ""}.Text(),
	}
}

// NameOf returns the name of a machine in QEMU's option -name.
func NameOf(id string) string { return "drover-" + id }

// NewMAC returns a random MAC address, with the prefix of QEMU's addresses.
func NewMAC() string {
	address := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0}
	_, _ = rand.Read(address[2:]) // never fails
	return address.String()
}

// DeriveMAC returns the MAC address of a machine that has none in its record, since an earlier version has made it.
func DeriveMAC(uuid string) string {
	sum := sha256.Sum256([]byte(uuid))
	return append(net.HardwareAddr{0x52, 0x54}, sum[:4]...).String()
}

// CheckMAC rejects text other than a MAC address that a guest can have.
func CheckMAC(text string) error {
	address, err := net.ParseMAC(text)
	if err != nil || len(address) != 6 || address[0]&1 != 0 {
		return fmt.Errorf("mac is %.40q: it must be six bytes like 52:54:00:12:34:56, and not a group's", text)
	}
	return nil
}

// arguments returns the arguments of a disk. They always state the backing file, so that
// QEMU does not open the backing file that a qcow2 header names.
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

// diskDevice returns the device of a disk. An error of the host's disk pauses the guest.
// If the guest received the error, it would make its file system read-only and lose the
// data that it could not write, although the error may be over soon, such as a full disk
// or a broken network.
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
