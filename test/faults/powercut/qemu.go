// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/framework"
)

// newQEMUWorkload returns a workload that creates, runs, releases and deletes machines of disk images and of a container image.
func newQEMUWorkload(in inputs, program *machine.Program) (*workload, error) {
	content, err := framework.ReadMachine()
	if err != nil {
		return nil, err
	}
	installation.Embedded = content
	d, err := qemu.New(qemu.Options{
		ClusterID: clusterID, Dir: in.Dir, ImageDirs: []string{filepath.Dir(in.Image)}, Accel: machine.AccelTCG,
		User: machineUser(), UserIDs: launch.DefaultUserIDs, GuestKernel: in.Kernel, UncheckedImages: true,
		Fetch: image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: []string{registryOf(in.Container)}},
	})
	if err != nil {
		return nil, err
	}
	d.Host.Images.Convert = rootfs.ConvertHere // strace does not see what another process writes
	if program != nil {
		d.Host.Program = program
	}
	if content, err = os.ReadFile(in.Image); err != nil {
		return nil, err
	}
	disk := func(uid types.UID, name string) string { return filepath.Join(instance.VMsDir, string(uid), name) }
	w := &workload{
		driver: d, program: d.Host.Program, specs: map[types.UID]driver.ServerSpec{}, folders: []string{instance.VMsDir, exits.Dir, "tmp", "locks"},
		disks: []string{instance.RootDiskFile, instance.VolumeFile("data")}, diskPath: disk,
		store: folder.ImagesDir, storeUserFile: disk(uidBoxed, instance.RecordFile),
		mayChange: func(name string) bool { return name == "lock" || strings.HasPrefix(name, "ref-") },
	}
	for uid, name := range map[types.UID]string{uidKept: "kept", uidFetched: "fetched", uidLast: "last"} {
		w.specs[uid] = driver.ServerSpec{
			Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: name,
			RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 16 << 20,
			RootDiskBytes: 1 << 20, Image: driver.Image{Source: in.Image}, UserData: driver.NewSecret("#cloud-config\n"),
			Volumes: []driver.Volume{{Name: "data", SizeBytes: 1 << 20}},
		}
	}
	fetched := w.specs[uidFetched]
	fetched.Image = driver.Image{Source: in.URL, Checksum: fmt.Sprintf("sha256:%x", sha256.Sum256(content))}
	w.specs[uidFetched] = fetched
	w.specs[uidBoxed] = driver.ServerSpec{
		Target: driver.Target{UID: uidBoxed, Epoch: 1}, Namespace: "default", Name: "boxed",
		RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 128 << 20,
		Image: driver.Image{Source: in.Container}, Command: []string{"/bin/sleep", "100000"}, Ephemeral: true,
		Volumes: []driver.Volume{{Name: "data", SizeBytes: 64 << 20, MountPath: "/data"}},
		Files:   []driver.FileMount{{MountPath: "/files", Revision: "1", Files: []driver.File{{Path: "a", Mode: 0o644, Data: driver.NewSecret("a")}}}},
	}
	grow := func(spec *driver.ServerSpec) { spec.RootDiskBytes *= 2 }
	w.steps = []step{
		w.reach("create kept", uidKept, driver.PowerOff, driver.StateStopped, nil),
		w.use("use its root disk", uidKept, filepath.Join(in.Dir, disk(uidKept, instance.RootDiskFile))),
		w.reach("start kept", uidKept, driver.PowerOn, driver.StateRunning, grow),
		w.reach("stop kept", uidKept, driver.PowerOff, driver.StateStopped, grow),
		w.use("use its volume", uidKept, filepath.Join(in.Dir, disk(uidKept, instance.VolumeFile("data")))),
		w.reach("create fetched", uidFetched, driver.PowerOff, driver.StateStopped, nil),
		w.remove("retain kept", uidKept, true),
		w.reach("create last", uidLast, driver.PowerOff, driver.StateStopped, nil),
		w.remove("delete fetched", uidFetched, false),
		w.remove("delete last", uidLast, false),
		w.reach("create boxed", uidBoxed, driver.PowerOff, driver.StateStopped, nil),
		w.use("use the root disk of boxed", uidBoxed, filepath.Join(in.Dir, disk(uidBoxed, instance.RootDiskFile))),
		w.reach("start boxed", uidBoxed, driver.PowerOn, driver.StateRunning, nil),
		w.reach("stop boxed", uidBoxed, driver.PowerOff, driver.StateStopped, nil),
		w.remove("delete boxed", uidBoxed, false),
	}
	return w, nil
}

// registryOf returns the registry of a reference.
func registryOf(reference string) string {
	host, _, _ := strings.Cut(reference, "/")
	return host
}

func machineUser() string {
	if os.Geteuid() == 0 {
		return launch.DefaultUser
	}
	return ""
}
