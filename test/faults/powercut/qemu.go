// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/supervisor"
	"cloudnative.tw/drover/test/framework"
)

// newQEMUWorkload creates, runs, releases and deletes machines.
func newQEMUWorkload(in inputs, program *machine.Program) (*workload, error) {
	content, err := framework.ReadMachine()
	if err != nil {
		return nil, err
	}
	supervisor.Embedded = content
	d, err := qemu.New(qemu.Options{
		ClusterID: clusterID, Dir: in.Dir, ImageDirs: []string{filepath.Dir(in.Image)}, Accel: machine.AccelTCG,
		User: machineUser(), UserIDs: launch.DefaultUserIDs, Fetch: image.Policy{Hosts: []string{"127.0.0.1"}},
	})
	if err != nil {
		return nil, err
	}
	if program != nil {
		d.Program = program
	}
	if content, err = os.ReadFile(in.Image); err != nil {
		return nil, err
	}
	disk := func(uid types.UID, name string) string { return filepath.Join(instance.VMsDir, string(uid), name) }
	w := &workload{
		driver: d, program: d.Program, specs: map[types.UID]driver.ServerSpec{}, folders: []string{instance.VMsDir, "tmp", "locks"},
		disks: []string{instance.RootDiskFile, instance.VolumeFile("data")}, diskPath: disk,
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
	}
	return w, nil
}

func machineUser() string {
	if os.Geteuid() == 0 {
		return launch.DefaultUser
	}
	return ""
}
