// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// secret is in every text of FuzzSpec that no command line may have.
const secret = "hunter2secret"

// choices are the choices of a user in a spec, as FuzzSpec gets them.
type choices struct {
	name, image, checksum, kernel, initrd, cmdline, volume, hostIP, protocol, key string
	hostPort, port                                                                int32
	cpu, memory, disk, size                                                       int64
}

// spec returns a spec with everything that a machine can have.
func (x choices) spec(uid types.UID) driver.ServerSpec {
	spec := driver.ServerSpec{
		Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: x.name, Power: driver.PowerOff,
		CPUMilli: x.cpu, MemoryBytes: x.memory, RootDiskBytes: x.disk,
		Image:    driver.Image{Source: x.image, Checksum: x.checksum},
		Volumes:  []driver.Volume{{Name: "plain", SizeBytes: 1 << 20}, {Name: x.volume, SizeBytes: x.size, ReadOnly: true}},
		Ports:    []driver.Port{{Protocol: x.protocol, Port: x.port, HostPort: x.hostPort, HostIP: x.hostIP}},
		SSHKeys:  []string{x.key},
		UserData: driver.NewSecret(x.key + secret), NetworkData: driver.NewSecret(secret),
	}
	spec.Image.Kernel = &driver.Kernel{Source: x.kernel, Initrd: x.initrd, Cmdline: x.cmdline}
	return spec
}

// fuzzHost is a driver on a folder, and the files that the fuzzer may name: images below images,
// and nothing else.
type fuzzHost struct {
	*qemu.Driver
	root, images string
	outside      []string
}

func newFuzzHost(f *testing.F) *fuzzHost {
	f.Helper()
	h := &fuzzHost{root: f.TempDir()}
	h.images = filepath.Join(h.root, "images")
	disk := make([]byte, 1<<20)
	copy(disk[510:], "\x55\xaa")
	err := errors.Join(os.Mkdir(h.images, 0o700), os.WriteFile(filepath.Join(h.images, "disk"), disk, 0o600),
		os.WriteFile(filepath.Join(h.images, "kernel"), disk, 0o600), os.WriteFile(filepath.Join(h.root, "key"), disk, 0o600),
		os.Symlink(filepath.Join(h.root, "key"), filepath.Join(h.images, "link")), os.Symlink("/images", filepath.Join(h.images, "self")))
	assert.NoError(f, err)
	h.Driver, err = qemu.New(qemu.Options{
		ClusterID: "cluster-1", Dir: filepath.Join(h.root, "engine"), ImageDirs: []string{h.images}, Accel: machine.AccelTCG, Binary: fakeQEMU(f, h.root),
	})
	assert.NoError(f, err)
	h.Host.OpenPort = func(_ context.Context, forward hostports.Forward) (*os.File, int32, error) {
		return nil, max(forward.HostPort, 1024), nil
	}
	h.outside = h.filesOutside(f)
	return h
}

// fakeQEMU is a program that has the machine types of a QEMU.
func fakeQEMU(f *testing.F, dir string) string {
	f.Helper()
	path := filepath.Join(dir, "qemu")
	const script = "#!/bin/sh\ncase $1 in --version) echo QEMU emulator version 7.2.0;; *) echo 'q35  PC (alias of pc-q35-7.2)'; echo 'pc-q35-7.2  PC';; esac\n"
	assert.NoError(f, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// filesOutside returns what is in the root but not in the engine's folder.
func (h *fuzzHost) filesOutside(t testing.TB) (found []string) {
	t.Helper()
	err := filepath.WalkDir(h.root, func(path string, _ fs.DirEntry, err error) error {
		if path == filepath.Join(h.root, "engine") {
			return filepath.SkipDir
		}
		found = append(found, path)
		return err
	})
	assert.NoError(t, err)
	return found
}

// FuzzSpec checks that no text of a spec adds an option or an argument to QEMU's command line,
// or leads out of the machine's folder, that no secret is on that line or in the record, and
// that what is refused is refused by the field's name.
func FuzzSpec(f *testing.F) {
	h := newFuzzHost(f)
	plain := choices{
		name: "vm", image: "disk", kernel: "kernel", initrd: "kernel", cmdline: "console=ttyS0", volume: "data", hostIP: "127.0.0.1", protocol: "TCP",
		key: "ssh-ed25519 AAAA ", hostPort: 8080, port: 80, cpu: 1000, memory: 64 << 20, disk: 1 << 20, size: 1 << 20,
	}
	for _, change := range []func(*choices){
		func(*choices) {},
		func(x *choices) { x.cmdline = "-device,x=y\n-monitor stdio,\"a\\" },
		func(x *choices) { x.volume = "a,b=c" },
		func(x *choices) { x.hostIP = "::1" },
		func(x *choices) { x.image = "../key" },
		func(x *choices) { x.image, x.kernel, x.initrd = "link", "self/../../key", "" },
		func(x *choices) { x.protocol = "tcp::1-:2,hostfwd=x" },
		func(x *choices) { x.name, x.key = "a,b=c\nd", "\x7f" },
		func(x *choices) { x.cpu, x.memory = 255_000, 1<<42 },
		func(x *choices) { x.checksum, x.initrd = "sha256:x", "" },
	} {
		x := plain
		change(&x)
		f.Add(x.name, x.image, x.checksum, x.kernel, x.initrd, x.cmdline, x.volume, x.hostIP, x.protocol, x.key, x.hostPort, x.port, x.cpu, x.memory, x.disk, x.size)
	}
	f.Fuzz(func(t *testing.T, name, image, checksum, kernel, initrd, cmdline, volume, hostIP, protocol, key string, hostPort, port int32, cpu, memory, disk, size int64) {
		x := choices{name, image, checksum, kernel, initrd, cmdline, volume, hostIP, protocol, key, hostPort, port, cpu, memory, disk, size}
		isSize := func(bytes int64) bool { return bytes >= 1<<20 && bytes <= 1<<50 }
		if port < 1 || port > 65535 || hostPort < 0 || hostPort > 65535 || cpu < 10 || memory < 6<<20 || disk != 0 && !isSize(disk) || !isSize(size) || volume == "plain" {
			return // the API has none
		}
		if strings.Contains(cmdline+name+key+image+kernel+initrd, secret) {
			return
		}
		h.check(t, x)
	})
}

// onlyNames are the files below images that a spec may lead to.
var onlyNames = []string{"disk", "kernel"}

// namesField has the fields that an error names, whose image may not be there now.
var namesField = regexp.MustCompile(`^(spec\.)?(image(\.(source|checksum|kernel\.(source|initrd|cmdline)))?|volumes\[[01]\]\.[a-z]+|ports\[0\]\.[a-zA-Z]+|resource\.(cpu|memory|rootDisk))\b`)

// check prepares a run of a new server, and checks it.
func (h *fuzzHost) check(t *testing.T, x choices) {
	t.Helper()
	const uid = "0c6f2f4a-0000-4000-8000-000000000001"
	t.Cleanup(func() { _ = h.Delete(context.Background(), driver.Target{UID: uid}, false) })
	spec := h.below(x).spec(uid)
	files := &launch.Files{}
	defer files.Close()
	c, err := h.prepare(t, spec, files)
	if err != nil {
		assert.True(t, namesField.MatchString(err.Error()), "%+v: the error names no field: %v", x, err)
		return
	}
	assert.True(t, slices.Contains(onlyNames, x.image) && slices.Contains(onlyNames, x.kernel) && (x.initrd == "" || slices.Contains(onlyNames, x.initrd)),
		"%+v: it runs on files that are not among %q", x, onlyNames)
	args, err := c.Arguments(files)
	assert.Require(t, err == nil, "%+v was accepted, and cannot be started: %v", x, err)
	got, want := shapes(t, args), expectedShapes(t, x)
	assert.True(t, slices.Equal(got, want), "%+v makes the command line\n%q, which is not that of a plain machine", x, args)
	assert.True(t, args[slices.Index(args, "-append")+1] == x.cmdline, "the kernel's command line %q is not in %q", x.cmdline, args)
	h.checkFiles(t, uid, args)
}

// below returns the choices with their files in the folder of images.
func (h *fuzzHost) below(x choices) choices {
	for _, name := range []*string{&x.image, &x.kernel, &x.initrd} {
		if *name != "" || name == &x.kernel {
			*name = h.images + "/" + *name
		}
	}
	return x
}

// prepare makes a server that is off, and opens what its run would get.
func (h *fuzzHost) prepare(t *testing.T, spec driver.ServerSpec, files *launch.Files) (launch.MachineConfig, error) {
	t.Helper()
	if _, err := h.Ensure(t.Context(), spec); err != nil {
		return launch.MachineConfig{}, err
	}
	inst, err := h.Host.InstanceOf(spec.UID).Load()
	assert.NoError(t, err)
	return instance.PrepareRun(t.Context(), inst, spec, files)
}

// checkFiles checks that nothing was made outside of the driver's folder, and that no secret
// is where others could read it.
func (h *fuzzHost) checkFiles(t *testing.T, uid types.UID, args []string) {
	t.Helper()
	assert.True(t, !strings.Contains(strings.Join(args, "\x00"), secret), "the command line has a secret: %q", args)
	now := h.filesOutside(t)
	assert.True(t, slices.Equal(now, h.outside), "outside of its folder there are %q, and there were %q", now, h.outside)
	record, err := os.ReadFile(h.Host.InstanceOf(uid).Machine.File(instance.RecordFile))
	assert.True(t, err == nil && !bytes.Contains(record, []byte(secret)), "the record has a secret, or cannot be read: %v: %s", err, record)
}

// expectedShapes are the shapes of a plain machine that has the same disks, ports and files.
func expectedShapes(t *testing.T, x choices) []string {
	t.Helper()
	fd := 9
	next := func() int { fd++; return fd - 1 }
	c := launch.MachineConfig{
		UUID: "0c6f2f4a-0000-4000-8000-000000000000", MAC: "52:54:00:12:34:56", ID: "plain", Type: "pc-q35-7.2", Accel: launch.AccelTCG, CPUs: 1, MemoryBytes: 64 << 20,
		Volumes: []launch.Volume{{Name: "plain", Drive: launch.Drive{FD: next()}}, {Name: "data", Drive: launch.Drive{FD: next(), ReadOnly: true}}},
		Kernel:  &launch.Kernel{FD: next()}, SeedFD: next(),
	}
	if x.initrd != "" {
		c.Kernel.InitrdFD = next()
	}
	if x.image != "" || x.disk > 0 {
		c.Root = &launch.Drive{FD: next()}
	}
	if x.image != "" {
		c.Root.Backing = &launch.Layer{FD: next(), Format: "raw"}
	}
	files := &launch.Files{}
	for range fd - 9 {
		files.Add(nil)
	}
	args, err := c.Arguments(files)
	assert.NoError(t, err)
	return shapes(t, args)
}

// In options with commas and in JSON, what depends on the spec, or is a descriptor.
var (
	inOption = regexp.MustCompile(`^(fd|set|addr.str|logfile)=(/dev/fdset/\d+|\d+)$|^(drover-[a-z0-9-]+|[0-9a-f-]{36}|\d+M?|/proc/self/fd/\d+)$`)
	inJSON   = regexp.MustCompile(`^(/dev/fdset/\d+|52:54(:[0-9a-f]{2}){4}|(disk-)?volume-[a-z0-9-]{1,20}|[a-z0-9-]{1,20})$`)
)

// shapes returns arguments without what may differ between two machines.
func shapes(t *testing.T, args []string) (all []string) {
	t.Helper()
	for i, arg := range args {
		switch {
		case i > 0 && args[i-1] == "-append":
			all = append(all, "text")
		case strings.HasPrefix(arg, "{"):
			var object map[string]any
			err := json.Unmarshal([]byte(arg), &object)
			assert.Require(t, err == nil, "%q: %v", arg, err)
			erase(object)
			erased, _ := json.Marshal(object)
			all = append(all, string(erased))
		case strings.HasPrefix(arg, "-"):
			all = append(all, arg)
		default:
			all = append(all, shapeOf(arg))
		}
	}
	return all
}

// shapeOf erases the values in an option with commas that may differ.
func shapeOf(option string) string {
	parts := strings.Split(option, ",")
	for i, part := range parts {
		if key, _, keyed := strings.Cut(part, "="); inOption.MatchString(part) && keyed {
			parts[i] = key + "=*"
		} else if inOption.MatchString(part) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ",")
}

// erase erases the values in a JSON object that may differ.
func erase(object map[string]any) {
	for key, value := range object {
		switch value := value.(type) {
		case map[string]any:
			erase(value)
		case string:
			if slices.Contains([]string{"filename", "node-name", "serial", "drive", "id", "mac"}, key) && inJSON.MatchString(value) {
				object[key] = "*"
			}
		}
	}
}
