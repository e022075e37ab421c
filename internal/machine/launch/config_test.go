// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// decode returns the JSON value of the option that follows a flag and contains the
// string mentions.
func decode(t *testing.T, args []string, flag, mentions string) map[string]any {
	t.Helper()
	for i, arg := range args {
		if i == 0 || args[i-1] != flag || !strings.Contains(arg, mentions) {
			continue
		}
		var value map[string]any
		err := json.Unmarshal([]byte(arg), &value)
		assert.Require(t, err == nil, "%s is followed by %q: %v", flag, arg, err)
		return value
	}
	t.Fatalf("there is no %s with %s in %q", flag, mentions, args)
	return nil
}

func TestArguments(t *testing.T) {
	t.Parallel()
	m := MachineConfig{
		UUID: "0c6f2f4a-0000-4000-8000-000000000001", MAC: "52:54:00:12:34:56", ID: "0123456789abcdef", Type: "pc-q35-7.2", Accel: AccelTCG, CPUs: 3, MemoryBytes: 4e9,
		Root: &Drive{FD: 9, Backing: &Layer{FD: 10, Format: formatQcow2}},
	}
	args := m.arguments()
	for _, pair := range [][2]string{
		{"-uuid", m.UUID},
		{"-name", "drover-0123456789abcdef"},
		{"-accel", "tcg,tb-size=64"},
		{"-smp", "3"},
		{"-m", "3814M"},
		{"-action", "shutdown=pause,panic=pause"},
		{"-netdev", "stream,id=net,server=on,addr.type=fd,addr.str=8"},
		{"-machine", "pc-q35-7.2,usb=off,vmport=off,dump-guest-core=off"},
	} {
		i := slices.Index(args, pair[0])
		assert.True(t, i >= 0 && args[i+1] == pair[1], "there is no %s %s in %q", pair[0], pair[1], args)
	}
	sandbox := args[slices.Index(args, "-sandbox")+1]
	assert.True(t, strings.HasPrefix(sandbox, "on,"), "the sandbox is %q", sandbox)
	backing := decode(t, args, "-blockdev", "/dev/fdset/9")["backing"].(map[string]any)
	next, named := backing["backing"]
	assert.True(t, named && next == nil, "QEMU would follow the pointer in the image: %v", backing)
	mac := decode(t, args, "-device", "virtio-net")["mac"].(string)
	assert.True(t, strings.HasPrefix(mac, "52:54:") && len(mac) == 17, "the address is %q", mac)
}

// TestDisksPause checks that an error of any disk, including the seed's, pauses the
// guest.
func TestDisksPause(t *testing.T) {
	t.Parallel()
	disks := 0
	for _, device := range decodeAll(t, plainConfig().arguments(), "-device") {
		if device["driver"] != "virtio-blk-pci" {
			continue
		}
		disks++
		assert.True(t, device["werror"] == "stop" && device["rerror"] == "stop", "a disk is %v", device)
	}
	assert.True(t, disks == 3, "there are %d disks", disks)
}

// TestDisksAreFlushed checks that QEMU flushes every disk of every description when its guest
// does, and that guests know that they have to: neither a block node nor a device sets a
// cache mode. Mode unsafe is the option no-flush of any node, which nodes below inherit.
func TestDisksAreFlushed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*MachineConfig){
		"plain":           func(*MachineConfig) {},
		"raw":             func(c *MachineConfig) { c.Root = &Drive{FD: firstFD, Format: formatRaw} },
		"qcow2 on qcow2":  func(c *MachineConfig) { c.Root.Backing.Format = formatQcow2 },
		"read-only":       func(c *MachineConfig) { c.Volumes[0].ReadOnly = true },
		"KVM":             func(c *MachineConfig) { c.Accel = AccelKVM },
		"volume on image": func(c *MachineConfig) { c.Volumes[0].Backing = &Layer{FD: 99, Format: formatRaw} },
	} {
		c := plainConfig()
		change(&c)
		disks := c.checkFlushes(t)
		assert.True(t, disks == 3 && !slices.Contains(c.arguments(), "-drive"), "%s: there are %d disks in %q", name, disks, c.arguments())
	}
}

// checkFlushes checks that no cache mode keeps flushes from a disk. It returns how many disks
// there are.
func (c MachineConfig) checkFlushes(t *testing.T) (disks int) {
	t.Helper()
	args := c.arguments()
	for _, node := range decodeAll(t, args, "-blockdev") {
		disks++
		checkCache(t, node)
	}
	for _, device := range decodeAll(t, args, "-device") {
		mode, ok := device["write-cache"]
		assert.True(t, !ok, "a device has the write cache %v: %v", mode, device)
	}
	return disks
}

// checkCache checks that neither a block node nor one below it has a cache mode.
func checkCache(t *testing.T, node map[string]any) {
	t.Helper()
	for key, value := range node {
		assert.True(t, !strings.HasPrefix(key, "cache"), "a block node has the cache mode %v: %v", value, node)
		if below, ok := value.(map[string]any); ok {
			checkCache(t, below)
		}
	}
}

// TestRawDisk checks that a raw disk is opened as such, whatever its guest writes to it, and
// that only qcow2 has an image below.
func TestRawDisk(t *testing.T) {
	t.Parallel()
	raw := Drive{FD: 9, Format: formatRaw}.arguments(RootNode, Object{})[1]
	want := `{"discard":"unmap","driver":"raw","file":{"discard":"unmap","driver":"file","filename":"/dev/fdset/9"},"node-name":"root"}`
	assert.True(t, raw == want, "got %s, want %s", raw, want)
}

// TestAgentIsLast checks that the device of the guest's agent takes no slot that another
// device would get: it has a reserved slot and comes last, so that the rest of the command
// line is the same without it.
func TestAgentIsLast(t *testing.T) {
	t.Parallel()
	with, without := plainConfig(), plainConfig()
	without.AgentFD = 0
	args := with.arguments()
	before := len(without.arguments())
	assert.Require(t, slices.Equal(args[:before], without.arguments()), "it changes what comes before: %q", args)
	assert.Equal(t, "its socket", args[before+1], "socket,id=agent,fd=15,server=on,wait=off")
	for _, device := range decodeAll(t, args, "-device") {
		address, fixed := device["addr"]
		assert.True(t, fixed == (device["driver"] == "virtio-serial-pci") && (!fixed || address == "1e.0"), "the address of %v is %v", device, address)
	}
	port := decode(t, args, "-device", "virtserialport")
	assert.True(t, port["name"] == "org.qemu.guest_agent.0" && port["bus"] == "serial.0", "its port is %v", port)
}

// TestSeedSerial checks that cloud-init's disk has the serial number that is reserved for it.
func TestSeedSerial(t *testing.T) {
	t.Parallel()
	serial := decode(t, seedArguments(8), "-device", "virtio-blk")["serial"]
	assert.True(t, serial == SeedSerial, "the serial number is %v", serial)
}

// plainConfig describes a machine with everything that a machine can have.
func plainConfig() MachineConfig {
	return MachineConfig{
		UUID: "0c6f2f4a-0000-4000-8000-000000000001", MAC: "52:54:00:12:34:56", ID: "x", Type: "pc-q35-7.2", Accel: AccelTCG, CPUs: 1, MemoryBytes: 16 << 20,
		Root:    &Drive{FD: firstFD, Backing: &Layer{FD: firstFD + 1, Format: formatRaw}},
		Volumes: []Volume{{"x", Drive{FD: firstFD + 2}}},
		Kernel:  &Kernel{FD: firstFD + 3, InitrdFD: firstFD + 4, Cmdline: "x"},
		SeedFD:  firstFD + 5,
		AgentFD: firstFD + 6,
	}
}

// plainFiles are as many as plainConfig names.
func plainFiles() *Files { return &Files{files: make([]*os.File, 7)} }

// TestCheck checks that a description with a wrong value is refused, by the field's name.
func TestCheck(t *testing.T) {
	t.Parallel()
	assert.ErrorIs(t, "a good one is refused", plainConfig().check(plainFiles()), nil)
	for name, c := range map[string]struct {
		change func(*MachineConfig)
		says   string
	}{
		"uuid":              {func(c *MachineConfig) { c.UUID = "x" }, "uuid"},
		"id":                {func(c *MachineConfig) { c.ID = "a,b" }, "id is"},
		"type":              {func(c *MachineConfig) { c.Type = "q35,usb=on" }, "type is"},
		"accelerator":       {func(c *MachineConfig) { c.Accel = "tcg,x=y" }, "accelerator"},
		"no CPU":            {func(c *MachineConfig) { c.CPUs = 0 }, "cpus"},
		"memory":            {func(c *MachineConfig) { c.MemoryBytes = 1 }, "memoryBytes"},
		"command line":      {func(c *MachineConfig) { c.Kernel.Cmdline = "a\x00b" }, "kernel.cmdline"},
		"volume":            {func(c *MachineConfig) { c.Volumes[0].Name = "a,b" }, "volumes[0].name"},
		"a serial number":   {func(c *MachineConfig) { c.Volumes[0].Name = guestconfig.FilesSerial }, "volumes[0].name"},
		"the seed's name":   {func(c *MachineConfig) { c.Volumes[0].Name = SeedSerial }, "volumes[0].name"},
		"many volumes":      {func(c *MachineConfig) { c.Volumes = make([]Volume, maxVolumes+1) }, "volumes"},
		"format":            {func(c *MachineConfig) { c.Root.Backing.Format = "vmdk" }, "format"},
		"format of a disk":  {func(c *MachineConfig) { c.Volumes[0].Format, c.Volumes[0].Backing = "vmdk", nil }, "format of a disk"},
		"raw on an image":   {func(c *MachineConfig) { c.Root.Format = formatRaw }, "without a backing image"},
		"standard output":   {func(c *MachineConfig) { c.Root.FD = 1 }, "descriptor 1"},
		"a disk twice":      {func(c *MachineConfig) { c.Volumes[0].FD = c.Root.FD }, "descriptor 9"},
		"a descriptor less": {func(c *MachineConfig) { c.SeedFD = 0 }, "names 6 descriptors for 7 files"},
		"a socket twice":    {func(c *MachineConfig) { c.AgentFD = c.SeedFD }, "descriptor 14"},
		"too high":          {func(c *MachineConfig) { c.SeedFD = 100 }, "descriptor 100"},
	} {
		config := plainConfig()
		c.change(&config)
		assert.ErrorSays(t, name, config.check(plainFiles()), c.says)
	}
}

// FuzzConfig checks that no description makes an option of QEMU that it should not make,
// whatever it holds.
func FuzzConfig(f *testing.F) {
	whole, err := json.Marshal(plainConfig())
	assert.NoError(f, err)
	f.Add(whole)
	for _, text := range []string{`{}`, strings.Replace(string(whole), `"tcg"`, `"tcg,thread=multi"`, 1)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var c MachineConfig
		if json.Unmarshal(text, &c) != nil || c.check(&Files{files: make([]*os.File, len(c.setFDs())+len(c.reopenedFDs())+len(c.socketFDs()))}) != nil {
			return
		}
		again, err := json.Marshal(c)
		assert.NoError(t, err)
		var back MachineConfig
		err = json.Unmarshal(again, &back)
		assert.True(t, err == nil && slices.Equal(back.arguments(), c.arguments()), "%s comes back as %s: %v", text, again, err)
		c.checkArguments(t)
		c.checkFlushes(t)
	})
}

// checkArguments checks that only the options that every machine has are used, and that
// the configured strings are only in the options that they belong to.
func (c MachineConfig) checkArguments(t *testing.T) {
	t.Helper()
	args := c.arguments()
	known := plainConfig().arguments()
	for i, arg := range args {
		assert.True(t, !strings.HasPrefix(arg, "-") || slices.Contains(known, arg) || args[i-1] == "-append", "%+v makes the option %q", c, arg)
	}
	for _, pair := range [][2]string{{"-accel", AcceleratorOption(c.Accel)}, {"-uuid", c.UUID}, {"-machine", c.Type + ",usb=off,vmport=off,dump-guest-core=off"}} {
		assert.True(t, args[slices.Index(args, pair[0])+1] == pair[1] && strings.Count(pair[1], ",") <= 3, "%+v makes %q", c, args)
	}
	for _, node := range decodeAll(t, args, "-blockdev") {
		checkNode(t, node)
	}
	netdev := args[slices.Index(args, "-netdev")+1]
	assert.True(t, netdevPattern.MatchString(netdev), "the network is %q", netdev)
}

var (
	netdevPattern = regexp.MustCompile(`^stream,id=net,server=on,addr.type=fd,addr.str=[0-9]+$`)
	fdsetPattern  = regexp.MustCompile(`^/dev/fdset/[0-9]+$`)
)

// checkNode checks that a disk, and the image below it, are descriptors.
func checkNode(t *testing.T, node map[string]any) {
	t.Helper()
	name, _ := node["file"].(map[string]any)["filename"].(string)
	assert.True(t, fdsetPattern.MatchString(name), "a disk is %v", node)
	if backing, ok := node["backing"].(map[string]any); ok {
		checkNode(t, backing)
	}
}

// decodeAll returns the JSON values of a flag, in order.
func decodeAll(t *testing.T, args []string, flag string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for i, arg := range args {
		if i == 0 || args[i-1] != flag || i > 1 && args[i-2] == "-append" {
			continue
		}
		var value map[string]any
		err := json.Unmarshal([]byte(arg), &value)
		assert.Require(t, err == nil, "%s is followed by %q: %v", flag, arg, err)
		all = append(all, value)
	}
	return all
}

// TestDevice checks which devices the users of machines may use, and through which group.
func TestDevice(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	users, err := NewUsers(DefaultUser, "")
	assert.NoError(t, err)
	const group = 12345
	for name, c := range map[string]struct {
		mode   os.FileMode
		gid    int
		groups []uint32
		usable bool
	}{
		"root's alone":               {0o600, 0, nil, false},
		"of root's group":            {0o660, 0, nil, false},
		"of a group that may not":    {0o600, group, nil, false},
		"of a group that only reads": {0o640, group, nil, false},
		"of a group":                 {0o660, group, []uint32{group}, true},
		"everyone's":                 {0o666, 0, nil, true},
	} {
		path := filepath.Join(t.TempDir(), "device")
		assert.NoError(t, os.WriteFile(path, nil, 0o600))
		assert.NoError(t, os.Chown(path, 0, c.gid))
		assert.NoError(t, os.Chmod(path, c.mode))
		got := deviceGroups(path)
		assert.True(t, slices.Equal(got, c.groups), "%s: got the groups %v, want %v", name, got, c.groups)
		if err := users.CheckDevice(path); (err == nil) != c.usable || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
