// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Containers are machines of this host that boot a container image, which a registry of the tests has.
type Containers struct {
	QEMU

	// Ephemeral has each run begin with the image.
	Ephemeral bool
	served    *servedImage
}

// servedImage is shared by all worlds.
type servedImage struct {
	prepare   sync.Once
	err       error
	reference string
	registry  *httptest.Server // for as long as this process lives
	kernel    string
}

// NewContainers returns the engine.
func NewContainers(ephemeral bool) Containers {
	return Containers{NewQEMU(), ephemeral, &servedImage{}}
}

// Name implements Engine.
func (e Containers) Name() string {
	if e.Ephemeral {
		return "ephemeral"
	}
	return "container"
}

// Runs implements Engine: the workloads in which a machine of a container image differs from one of a disk.
func (e Containers) Runs(workload string) bool {
	return slices.Contains([]string{"create", "job", "power", "restart", "delete"}, workload)
}

// Args implements Engine.
func (e Containers) Args(w *World) []string {
	registry, _, _ := strings.Cut(e.served.reference, "/")
	return append(e.QEMU.Args(w), "--qemu-kernel="+e.served.kernel, "--qemu-unchecked-images", "--image-hosts=127.0.0.1", "--image-plain-http-registries="+registry)
}

// Prepare implements Engine.
func (e Containers) Prepare(ctx context.Context, w *World) error {
	e.served.prepare.Do(func() { e.served.err = e.served.make(context.WithoutCancel(ctx)) })
	return errors.Join(e.served.err, e.QEMU.Prepare(ctx, w))
}

func (s *servedImage) make(ctx context.Context) error {
	busybox, err := framework.MakeBusyBoxImage(ctx, v1.Config{Entrypoint: []string{"/bin/sh", "-c"}, Env: []string{"PATH=/bin"}})
	if err != nil {
		return err
	}
	if s.registry, s.reference, err = framework.StartRegistryOf(busybox); err != nil {
		return err
	}
	guest, err := framework.BuildImageGuest()
	s.kernel = filepath.Dir(guest.Kernel)
	return err
}

// NewVM implements Engine.
func (e Containers) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(e.QEMU.Name()).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").GracePeriod(5).
		Image(e.served.reference).Spec(func(s *api.VirtualMachineSpec) {
		s.Ephemeral, s.Args = e.Ephemeral, []string{"while :; do sleep 1; done"}
		s.Env = []api.EnvVar{{Name: "SECRET", ValueFrom: &api.EnvVarSource{SecretKeyRef: &api.SecretKeySelector{SecretKeyRef: api.SecretKeyRef{Name: SecretName, Key: SecretKey}}}}}
	})
}

// NewJob returns a VirtualMachine whose command fails if it has run before.
func (e Containers) NewJob(name string) *framework.VMBuilder {
	return e.NewVM(name).RestartPolicy(api.RestartNever).Spec(func(s *api.VirtualMachineSpec) {
		s.Args = []string{"test ! -e /was && touch /was"}
	})
}

// Inspect implements Engine. Once all is well, no image may be damaged, missing or left that nobody uses.
func (e Containers) Inspect(ctx context.Context, w *World, processes []rules.Process) (Observed, error) {
	o, err := e.QEMU.Inspect(ctx, w, processes)
	if err != nil || processes == nil {
		return o, err
	}
	broken, err := checkImages(ctx, e.Dir(w))
	o.Violations = append(o.Violations, broken...)
	return o, err
}

// checkImages removes the images that no server uses, and checks the others.
func checkImages(ctx context.Context, dir string) (broken []rules.Violation, err error) {
	f, err := folder.Open(dir, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	if _, err := f.PruneImages(ctx); err != nil {
		return nil, err
	}
	images, err := f.Images()
	if err != nil {
		return nil, err
	}
	store := &image.Store{Dir: dir, Sub: folder.ImagesDir, Clock: clock.RealClock{}}
	for _, i := range images {
		if len(i.UsedBy) == 0 || len(i.Sources) == 0 {
			broken = append(broken, rules.Broken(rules.O2, "image %s is left, of the sources %v and used by %v", i.Name, i.Sources, i.UsedBy))
			continue
		}
		root, err := store.OpenRoot(image.ParseRef(i.Sources[0], ""))
		if err != nil {
			broken = append(broken, rules.Broken(rules.O10, "image %s: %v", i.Name, err))
			continue
		}
		_ = root.Close()
	}
	staged, err := findStaged(dir)
	for _, path := range staged {
		broken = append(broken, rules.Broken(rules.O2, "%s is left", path))
	}
	return broken, err
}

// findStaged returns the images and disks that were left where they are made. What was discarded goes with the next
// one that is made.
func findStaged(dir string) (paths []string, err error) {
	err = filepath.WalkDir(filepath.Join(dir, "tmp"), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // it is being removed
			return nil
		}
		if err == nil && entry.Type().IsRegular() && strings.HasPrefix(filepath.Base(filepath.Dir(path)), "make-") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("looking for leftovers: %w", err)
	}
	return paths, err
}
