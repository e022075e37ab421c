// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// environment has one controller with all drivers, for all tests.
var environment *specEnvironment

type specEnvironment struct {
	*testenv.Environment
	objects         dynamic.Interface
	qemuDir, images string
	container       string // an image in a registry
	decisions       decisionsLog
}

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, startEnvironment)) }

func startEnvironment() (func() error, error) {
	if err := setRapidFlags(); err != nil {
		return nil, err
	}
	if _, err := framework.OpenDockerClient(); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "drover-specs-")
	if err != nil {
		return nil, err
	}
	e := &specEnvironment{qemuDir: filepath.Join(temp, "qemu"), images: filepath.Join(temp, "images")}
	if err := os.Mkdir(e.images, 0o700); err != nil {
		return nil, err
	}
	archive, err := framework.GuestArchive()
	if err != nil {
		return nil, err
	}
	guest, err := framework.LayersImage(v1.Config{Entrypoint: []string{program}}, archive)
	if err != nil {
		return nil, err
	}
	registry, container, err := framework.StartRegistryOf(guest)
	if err != nil {
		return nil, err
	}
	kernel, err := framework.BuildImageGuest()
	if err != nil {
		return nil, err
	}
	e.container = container
	if e.Environment, err = testenv.New(); err != nil {
		return nil, err
	}
	e.WriteDecision = e.decisions.add
	controller, err := e.StartController("--vm-driver=fake,docker,qemu", "--usage-period=1h", "--list-period=1h", "--orphan-grace=1s",
		"--qemu-dir="+e.qemuDir, "--qemu-image-dirs="+e.images, "--qemu-accel=tcg", "--image-hosts=127.0.0.1",
		"--qemu-kernel="+filepath.Dir(kernel.Kernel), "--qemu-unchecked-images", "--image-plain-http-registries="+registry.Listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	stop := func() error { return errors.Join(controller.Stop(), e.Close()) }
	if e.objects, err = dynamic.NewForConfig(e.Config); err != nil {
		return nil, errors.Join(err, stop())
	}
	environment = e
	return func() error {
		registry.Close()
		return errors.Join(e.waitSwept(), stop(), e.decisions.check(), os.RemoveAll(temp))
	}, nil
}

// waitSwept waits until no simulated server is left. The last deletions of a test may leave servers
// to the orphan sweep (see users.waitSwept).
func (e *specEnvironment) waitSwept() error {
	return assert.Poll(context.Background(), "the sweep removes all servers", func() error {
		left, err := filepath.Glob(filepath.Join(e.FakeDir, "*.json"))
		if len(left) > 0 {
			err = fmt.Errorf("these servers are left: %q", left)
		}
		return err
	})
}

// newNamespace creates a namespace with the Secret that specs refer to.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := environment.CreateNamespace(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName}, StringData: map[string]string{secretKey: secretText}}
	assert.NoError(t, assert.ErrorOf(environment.KubeClient.CoreV1().Secrets(ns).Create(context.Background(), secret, metav1.CreateOptions{})))
	showDecisions(t, ns)
	return ns
}
