// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// shared is a real etcd and kube-apiserver with the controllers that collect garbage. It runs
// without nodes: a kubelet of the tests acts for them.
var shared *framework.Cluster

func TestMain(m *testing.M) {
	os.Exit(framework.RunTests(m, &shared, framework.ClusterOptions{Args: []string{"--all-apis"}}))
}

const (
	clusterID = "cluster-1"
	nodeName  = "node-1"
	// growing is a StorageClass whose volumes can grow.
	growing = "growing"
)

var vmResource = schema.GroupVersionResource{Group: "cloudnative.tw", Version: "v1alpha1", Resource: "virtualmachines"}

// world is a namespace of the shared cluster with a kubelet.
type world struct {
	kube      kubernetes.Interface
	vms       dynamic.ResourceInterface
	namespace string // empty for all but those of other worlds
	// cluster is the id of the cluster that drivers are opened with.
	cluster string
	kubelet *podtest.Kubelet
}

// namespacePrefix begins the names of the namespaces that worlds have for themselves.
const namespacePrefix = "pods-"

// hasObject reports whether an object is of the world, and so no other world's kubelet acts on it.
func (w *world) hasObject(o metav1.Object) bool {
	return w.namespace == o.GetNamespace() || w.namespace == "" && !strings.HasPrefix(o.GetNamespace(), namespacePrefix)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	assert.NoError(t, grantRole())
	return newWorldIn(t, shared)
}

// newIsolatedWorld is newWorld with a separate cluster id, for tests that count or check what a driver
// releases: drivers with the same id do that in all namespaces.
func newIsolatedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.cluster += "-" + w.namespace
	return w
}

// newWorldIn makes a namespace in a cluster.
func newWorldIn(t *testing.T, c *framework.Cluster) *world {
	t.Helper()
	binary := rest.CopyConfig(c.Config)
	binary.ContentType = runtime.ContentTypeProtobuf // which costs less than JSON
	kube := kubernetes.NewForConfigOrDie(binary)
	made, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: growing}, Provisioner: "test", AllowVolumeExpansion: new(true)}
	if _, err := kube.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	waitForServiceAccount(t, kube, made.Name)
	w := &world{kube, dynamic.NewForConfigOrDie(c.Config).Resource(vmResource).Namespace(made.Name), made.Name, clusterID, nil}
	w.kubelet = startKubelet(t, w)
	return w
}

// startKubelet starts the kubelet of a world.
func startKubelet(t *testing.T, w *world) *podtest.Kubelet {
	t.Helper()
	k := podtest.NewKubelet(w.kube, w.namespace)
	k.Has, k.Log, k.NodeName = w.hasObject, t.Logf, nodeName
	assert.NoError(t, k.Start(nil))
	t.Cleanup(k.Stop)
	return k
}

// waitForServiceAccount waits until pods can be created in a namespace.
func waitForServiceAccount(t *testing.T, kube kubernetes.Interface, namespace string) {
	t.Helper()
	assert.Eventually(t, "the default ServiceAccount", func(t testing.TB) error {
		_, err := kube.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// open opens a driver, as another controller of the cluster would, with the rights of one.
func (w *world) open(t *testing.T) *Driver {
	t.Helper()
	return openAs(t, shared.Config, w.cluster)
}

// openAs opens a driver of a cluster id by a connection to the shared cluster.
func openAs(t *testing.T, config *rest.Config, id string) *Driver {
	t.Helper()
	return openWithin(t, config, id, 0)
}

// openWithin is openAs with a limit for calls.
func openWithin(t *testing.T, config *rest.Config, id string, within time.Duration) *Driver {
	t.Helper()
	d, ok := openWith(t, config, id, within, false).(*Driver)
	assert.Require(t, ok, "a driver without --pod-streams has streams")
	return d
}

// openWithStreams is openWithin with --pod-streams.
func openWithStreams(t *testing.T, config *rest.Config, id string, within time.Duration) driver.Driver {
	t.Helper()
	return openWith(t, config, id, within, true)
}

// openWith is openWithin with a value of --pod-streams. A limit of 0 is the longest wait of a test.
func openWith(t *testing.T, config *rest.Config, id string, within time.Duration, withStreams bool) driver.Driver {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "system:serviceaccount:drover-system:drover-controller"
	o := DefaultOptions()
	o.Objects.AccessMode, o.CallTimeout, o.Fetch, o.Streams = string(corev1.ReadWriteOnce), cmp.Or(within, assert.StarvedLimit), nil, withStreams
	d, err := o.Open(driver.Environment{ClusterID: id, Cluster: config, Clock: clock.RealClock{}})
	assert.NoError(t, err)
	return d
}

// grantRole gives the controller what the manifest allows it, and nothing else.
var grantRole = sync.OnceValue(func() error {
	root, err := framework.RepositoryRoot()
	if err != nil {
		return err
	}
	binary, err := framework.DroverBinary()
	if err != nil {
		return err
	}
	args := []string{"kubectl", "--kubeconfig", shared.Kubeconfig, "apply"}
	for _, file := range []string{"rbac/namespace.yaml", "rbac/rbac.yaml", "pod/role.yaml", "pod-streams/role.yaml"} {
		args = append(args, "-f", filepath.Join(root, "config", file))
	}
	out, err := exec.CommandContext(context.Background(), binary, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
})

// server is the server of a VirtualMachine. It has its record, as the status has it.
type server struct {
	driver.ServerSpec

	w *world
	d *Driver
	// failWrites makes the controller end before it has written the record.
	failWrites bool
}

// newServer creates a VirtualMachine and returns its server, which is not there yet.
func (w *world) newServer(t *testing.T, name string) *server {
	t.Helper()
	vm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"resource": map[string]any{"cpu": "1", "memory": "32Mi"}},
	}}
	created, err := w.vms.Create(t.Context(), vm, metav1.CreateOptions{})
	assert.NoError(t, err)
	return &server{w: w, d: w.open(t), ServerSpec: driver.ServerSpec{
		Target: driver.Target{UID: created.GetUID(), Epoch: 1}, Namespace: w.namespace, Name: name, Power: driver.PowerOn,
		CPUMilli: 1000, MemoryBytes: 32 << 20, RootDiskBytes: 1 << 20, GracePeriod: 30 * time.Second,
		Image: driver.Image{Source: "oci://registry.example/boot:1"}, StorageClassName: new(growing),
	}}
}

// newServer returns a server of a new world.
func newServer(t *testing.T) (*world, *server) {
	t.Helper()
	w := newWorld(t)
	return w, w.newServer(t, "web")
}

// owner is the VirtualMachine as a controller knows it.
func (s *server) owner(uid types.UID) (driver.Owner, bool) {
	return driver.Owner{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, Labels: s.Labels}, uid == s.UID
}

// ensure calls Ensure as the controller does, which records objects before they are created.
func (s *server) ensure(t testing.TB) (driver.Server, error) {
	t.Helper()
	for range 6 {
		got, err := s.d.Ensure(t.Context(), s.ServerSpec)
		first, isFirst := errors.AsType[*driver.RecordFirstError](err)
		switch {
		case isFirst:
			if s.Objects = first.Objects; first.Failure != nil {
				return got, first.Failure
			}
			continue
		case err == nil && !s.failWrites:
			s.Objects = got.Objects
		}
		return got, err
	}
	t.Fatalf("%s has objects recorded without end: %+v", s.Name, s.Objects)
	return driver.Server{}, nil
}

// reach repeats Ensure until the server is in a state.
func (s *server) reach(t *testing.T, want driver.State) (got driver.Server) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%s is %s", s.Name, want), func(t testing.TB) (err error) {
		if got, err = s.ensure(t); err == nil && got.State != want {
			err = fmt.Errorf("it is %s: %s, %w", got.State, got.Progress, got.Err)
		}
		return err
	})
	return got
}

// turn changes the power state.
func (s *server) turn(t *testing.T, power driver.Power, want driver.State) {
	t.Helper()
	s.Power = power
	s.reach(t, want)
}

func (s *server) base() string { return objects.BaseName(s.Name, s.UID) }

func (s *server) pod(t testing.TB) *corev1.Pod {
	t.Helper()
	p, err := s.w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
	assert.NoError(t, err)
	return p
}

func (s *server) list(t testing.TB) driver.Server {
	t.Helper()
	all, err := s.d.List(t.Context(), s.UID)
	assert.Require(t, err == nil && len(all) == 1, "the list has %+v, %v, want one server", all, err)
	return all[0]
}

// deleteAll repeats Delete until nothing is left.
func (s *server) deleteAll(t *testing.T) {
	t.Helper()
	assert.Eventually(t, s.Name+" is removed", func(t testing.TB) error {
		err := s.d.Delete(t.Context(), s.Target, false)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		return errors.Join(err, errors.New("something is left"))
	})
}

// wantGone waits until the cluster has collected what is left of a server whose VirtualMachine is
// deleted.
func (s *server) wantGone(t *testing.T) {
	t.Helper()
	assert.NoError(t, s.w.vms.Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "nothing is left of "+s.Name, func(t testing.TB) error {
		var left []string
		selected := metav1.ListOptions{LabelSelector: objects.LabelUID + "=" + string(s.UID)}
		secrets, err1 := s.w.kube.CoreV1().Secrets(s.Namespace).List(t.Context(), selected)
		claims, err2 := s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(t.Context(), selected)
		budgets, err3 := s.w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace).List(t.Context(), selected)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		for _, list := range []runtime.Object{secrets, claims, budgets} {
			_ = meta.EachListItem(list, func(o runtime.Object) error {
				left = append(left, o.(metav1.Object).GetName())
				return nil
			})
		}
		return assert.ErrorUnless(len(left) == 0, "%v", left)
	})
}

// recordOf returns what is recorded of an object, or nil.
func (s *server) recordOf(kind string) *driver.Object {
	n := slices.IndexFunc(s.Objects, func(o driver.Object) bool { return o.Kind == kind })
	if n < 0 {
		return nil
	}
	return &s.Objects[n]
}
