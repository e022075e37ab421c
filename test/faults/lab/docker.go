// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Docker is the Docker Engine that DOCKER_HOST names. All worlds share it: if a world touches
// the containers of another, the events of the other show this (rules.OthersUntouched). Each world uses the engine
// through a separate proxy.
type Docker struct {
	worlds   *sync.Map // *dockerWorld by *World
	steps    bool      // whether StepClock works
	registry func() (address string, err error)
	second   *secondDocker
}

// NewDocker returns a Docker engine.
func NewDocker() Docker {
	return Docker{worlds: &sync.Map{}, registry: sync.OnceValues(startForeignRegistry), second: &secondDocker{}}
}

// NewSteppingDocker returns a Docker engine whose clock StepClock can change.
func NewSteppingDocker() Docker {
	e := NewDocker()
	e.steps = true
	return e
}

// dockerWorld is the part of a world that uses the engine.
type dockerWorld struct {
	proxy *framework.DockerProxy
	clock *dockerClock       // nil if the clock cannot step
	stop  context.CancelFunc // stops recordEvents

	foreign foreignContainer

	mu     sync.Mutex
	events map[string]events.Message
}

// Name implements Engine.
func (Docker) Name() string { return docker.Name }

// Runs implements Engine.
func (Docker) Runs(string) bool { return true }

// Args implements Engine.
func (Docker) Args(*World) []string {
	return []string{"--vm-driver=docker", "--docker-image=" + framework.GuestPlain}
}

// Variables implements Engine.
func (e Docker) Variables(w *World) []string { return e.world(w).proxy.Env() }

func (e Docker) world(w *World) *dockerWorld {
	d, _ := e.worlds.Load(w)
	return d.(*dockerWorld)
}

// Prepare implements Engine.
func (e Docker) Prepare(ctx context.Context, w *World) error {
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	d, host := &dockerWorld{events: map[string]events.Message{}}, c.DaemonHost()
	if e.steps {
		socket := filepath.Join(w.Dir, "clock.sock")
		if d.clock, err = openDockerClock(socket, host); err != nil {
			return err
		}
		host = "unix://" + socket
	}
	if d.foreign, err = startForeignContainer(ctx, c, w); err != nil {
		return errors.Join(err, d.foreign.remove(context.WithoutCancel(ctx), c))
	}
	d.proxy = framework.OpenDockerProxy(filepath.Join(w.Dir, "docker.sock"), host, report(w))
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.worlds.Store(w, d)
	go func() {
		if err := d.recordEvents(ctx, c, w, ""); err != nil && ctx.Err() == nil {
			report(w)("recording events: %v", err)
		}
	}()
	return nil
}

// NewVM implements Engine.
func (Docker) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(docker.Name).GracePeriod(5)
}

// BreakImage implements Engine: the registry does not have the image.
func (e Docker) BreakImage(context.Context, *World, string) (image string, err error) {
	address, err := e.registry()
	return address + "/none:v1", err
}

// Resize implements Engine.
func (Docker) Resize(vm *api.VirtualMachine) { setCPU(vm) }

// RepairImage implements Engine.
func (Docker) RepairImage(context.Context, *World) (image string, err error) {
	return framework.GuestPlain, nil
}

// Inspect implements Engine.
func (e Docker) Inspect(ctx context.Context, w *World, _ []rules.Process) (Observed, error) {
	o := newObserved()
	c, err := framework.OpenDockerClient()
	if err != nil {
		return o, err
	}
	containers, err := listContainers(ctx, c, w)
	if err != nil {
		return o, err
	}
	containers = slices.DeleteFunc(containers, func(c container.Summary) bool { return w.isCopy(c.ID) })
	for _, found := range containers {
		res, err := c.ContainerInspect(ctx, found.ID, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err): // removed since it was listed
			continue
		case err != nil:
			return o, err
		}
		o.Servers = append(o.Servers, serverOfContainer(res.Container))
		text, err := json.Marshal(res.Container)
		if err != nil {
			return o, err
		}
		o.Text += string(text)
	}
	err = e.readEvents(ctx, c, w, &o)
	o.Violations = append(o.Violations, e.world(w).foreign.check(ctx, c)...)
	return o, err
}

func listContainers(ctx context.Context, c *client.Client, w *World) ([]container.Summary, error) {
	all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", docker.LabelCluster+"="+w.ClusterID)})
	return all.Items, err
}

func serverOfContainer(c container.InspectResponse) Server {
	state := map[container.ContainerState]driver.State{
		container.StateRunning: driver.StateRunning, container.StatePaused: driver.StatePaused,
		container.StateExited: driver.StateStopped, container.StateCreated: driver.StateStopped,
	}[c.State.Status]
	return Server{
		UID: types.UID(c.Config.Labels[docker.LabelUID]), ID: c.ID, Name: c.Config.Labels[docker.LabelName], State: state,
		Released: strings.HasSuffix(c.Name, docker.RetainedSuffix),
		Config:   fmt.Sprintf("cpu=%d memory=%d image=%s", c.HostConfig.NanoCPUs, c.HostConfig.Memory, c.Config.Image),
	}
}

// recordEvents records the events of the world's containers, because the engine itself keeps
// only the last 256 events of all worlds.
func (d *dockerWorld) recordEvents(ctx context.Context, c *client.Client, w *World, until string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.Events(ctx, client.EventsListOptions{
		Since: w.since().Format(time.RFC3339Nano), Until: until,
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", docker.LabelCluster+"="+w.ClusterID),
	})
	for {
		select {
		case err := <-stream.Err:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		case event := <-stream.Messages:
			d.mu.Lock()
			d.events[fmt.Sprint(event.TimeNano, event.Actor.ID, event.Action)] = event
			d.mu.Unlock()
		}
	}
}

// readEvents counts the actions on the world's containers by their events.
func (e Docker) readEvents(ctx context.Context, c *client.Client, w *World, o *Observed) error {
	d := e.world(w)
	if err := d.recordEvents(ctx, c, w, time.Now().Format(time.RFC3339Nano)); err != nil { // the last ones
		return err
	}
	d.mu.Lock()
	since := w.since().UnixNano()
	maps.DeleteFunc(d.events, func(_ string, e events.Message) bool { return e.TimeNano < since })
	all := slices.SortedFunc(maps.Values(d.events), func(a, b events.Message) int { return cmp.Compare(a.TimeNano, b.TimeNano) })
	d.mu.Unlock()
	live, created := map[types.UID]string{}, map[types.UID]string{}
	for _, event := range all {
		if w.isCopy(event.Actor.ID) {
			continue
		}
		uid, name := types.UID(event.Actor.Attributes[docker.LabelUID]), event.Actor.Attributes[docker.LabelName]
		if event.Action == events.ActionCreate {
			if live[uid] != "" || created[uid] != "" {
				o.Violations = append(o.Violations, rules.Broken(rules.OneServer, "%s: container %s was created after %s", name, event.Actor.ID, created[uid]))
			}
			live[uid], created[uid] = event.Actor.ID, event.Actor.ID
			if o.Created[uid].IsZero() {
				o.Created[uid] = time.Unix(0, event.TimeNano)
			}
		}
		if event.Action == events.ActionDestroy && w.wasRemoved(event.Actor.ID) {
			delete(created, uid)
		} else {
			o.Effects[name] = countEvent(o.Effects[name], event)
		}
		if event.Action == events.ActionDestroy || isRelease(event) {
			delete(live, uid)
		}
	}
	return nil
}

func isRelease(e events.Message) bool {
	return e.Action == events.ActionRename && strings.HasSuffix(e.Actor.Attributes["name"], docker.RetainedSuffix)
}

func countEvent(e Effects, event events.Message) Effects {
	switch event.Action {
	case events.ActionCreate:
		e.Creates++
	case events.ActionDestroy:
		e.Deletes++
	case events.ActionRename:
		if isRelease(event) {
			e.Releases++
		}
	case events.ActionStart:
		e.Runs++
	default:
	}
	return e
}

// Outage implements Engine.
func (e Docker) Outage(ctx context.Context, w *World, exchanged bool) (back func() error, err error) {
	p := e.world(w).proxy
	if !exchanged {
		p.Disconnect()
		return func() error { p.Restore(); return nil }, nil
	}
	host, err := e.second.acquire()
	if err != nil {
		return nil, err
	}
	p.Disconnect()
	other := framework.OpenDockerProxy(filepath.Join(w.Dir, "docker.sock"), host, report(w))
	return func() error {
		other.Disconnect()
		p.Restore()
		return errors.Join(e.second.checkEmpty(context.WithoutCancel(ctx), host, w), e.second.release())
	}, nil
}

// report returns a function that prints an error of a world.
func report(w *World) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(os.Stderr, w.Name+": "+format+"\n", args...) }
}

// CleanUp implements Engine.
func (e Docker) CleanUp(ctx context.Context, w *World) error {
	foreign := foreignContainer{}
	if v, ok := e.worlds.LoadAndDelete(w); ok {
		d := v.(*dockerWorld)
		foreign = d.foreign
		d.stop()
		d.proxy.Disconnect()
		if d.clock != nil {
			_ = d.clock.server.Close()
		}
	}
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	containers, err := listContainers(ctx, c, w)
	for _, found := range containers {
		_, removeErr := c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removeErr)
	}
	return errors.Join(err, foreign.remove(ctx, c))
}

// Containers is the engine whose servers are QEMU machines that boot a container image, which a test registry serves.
type Containers struct {
	QEMU

	// Ephemeral makes each run begin with the unchanged image.
	Ephemeral bool
	served    *servedImage
}

// servedImage is shared by all worlds.
type servedImage struct {
	prepare   sync.Once
	err       error
	reference string
	registry  *httptest.Server // runs until this process ends
	kernel    string
}

// NewContainers returns an engine of container images.
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

// Runs implements Engine: it selects the workloads in which a machine of a container image differs from that of a disk image.
func (e Containers) Runs(workload string) bool {
	return slices.Contains([]string{"create", "job", "files", "power", "restart", "delete"}, workload)
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
	busybox, err := framework.MakeBusyBoxImage(ctx, v1.Config{Entrypoint: []string{"/bin/sh", "-c"}, Env: []string{"PATH=/bin"}, Volumes: map[string]struct{}{"/home": {}}})
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

// checkMounts is a command that fails unless the machine has its volumes and files, and the files of earlier runs on
// the volume. It writes to the volume before it writes to the root disk.
const checkMounts = `set -e
grep -q "^/dev/[a-z]* /data ext4" /proc/mounts
grep -q " /home ext4" /proc/mounts
test -d /home/ann
grep -q password /files/data
test ! -e /began || test -e /data/began
touch /data/began
sync
touch /began
`

// NewVM implements Engine. Its command ends, and so breaks rules.AsRequested, if its volumes or files are missing.
func (e Containers) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(e.QEMU.Name()).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").GracePeriod(5).
		Image(e.served.reference).Spec(func(s *api.VirtualMachineSpec) {
		s.Ephemeral, s.Args = e.Ephemeral, []string{checkMounts + "while :; do sleep 1; done"}
		s.Volumes = []api.Volume{{Name: "data", Size: resource.MustParse("64Mi"), MountPath: "/data"}}
		s.Files = []api.FileMount{{MountPath: "/files", Secret: &api.SecretFiles{SecretName: SecretName}}}
		s.Env = []api.EnvVar{{Name: "SECRET", ValueFrom: &api.EnvVarSource{SecretKeyRef: &api.SecretKeySelector{SecretKeyRef: api.SecretKeyRef{Name: SecretName, Key: SecretKey}}}}}
	})
}

// NewJob returns a VirtualMachine whose command fails if it has run before.
func (e Containers) NewJob(name string) *framework.VMBuilder {
	return e.NewVM(name).RestartPolicy(api.RestartNever).Spec(func(s *api.VirtualMachineSpec) {
		s.Args = []string{"test ! -e /was && touch /was"}
	})
}

// NewReader implements Jobs.
func (e Containers) NewReader(name string) *framework.VMBuilder {
	return e.NewVM(name).RestartPolicy(api.RestartNever).Spec(func(s *api.VirtualMachineSpec) {
		s.Args = []string{checkMounts + "until grep -q " + changedText + " /files/" + SecretKey + "; do sleep 1; done"}
	})
}

// Inspect implements Engine. At rest, no image may be damaged or missing, and no unused image may be left.
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
			broken = append(broken, rules.Broken(rules.NoOrphans, "image %s is left: its sources are %v, and its users %v", i.Name, i.Sources, i.UsedBy))
			continue
		}
		root, err := store.OpenRoot(image.ParseRef(i.Sources[0], ""))
		if err != nil {
			broken = append(broken, rules.Broken(rules.Converges, "image %s: %v", i.Name, err))
			continue
		}
		_ = root.Close()
	}
	staged, err := findStaged(dir)
	for _, path := range staged {
		broken = append(broken, rules.Broken(rules.NoOrphans, "%s is left", path))
	}
	return broken, err
}

// findStaged returns unfinished images and disks that were left in the folder tmp. Discarded ones are removed when
// the next one is made, and do not count.
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

// secondDocker is a Docker Engine that replaces the first one for a while. It runs while a world
// needs it, and has neither images nor containers.
type secondDocker struct {
	mu      sync.Mutex
	users   int
	dir     string
	process *exec.Cmd
}

// stopTimeout is how long the second engine may take to end on a busy host.
const stopTimeout = time.Minute

// acquire starts the engine if it does not run, and returns its address. The caller must release it.
func (d *secondDocker) acquire() (host string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		if err := d.start(); err != nil {
			return "", errors.Join(err, d.stop())
		}
	}
	d.users++
	return d.host(), nil
}

// release ends the engine if no other world needs it.
func (d *secondDocker) release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	return d.stop()
}

func (d *secondDocker) host() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

// start starts the engine in a separate network namespace, so that its bridge does not conflict with the first engine's.
func (d *secondDocker) start() (err error) {
	if d.dir, err = os.MkdirTemp("", "drover-d2-"); err != nil { // short, because it has sockets
		return err
	}
	// Before version 23 Docker derives an engine's id from a key that by default all engines of a host share.
	config := filepath.Join(d.dir, "daemon.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"deprecated-key-path": %q}`, filepath.Join(d.dir, "key.json")), 0o600); err != nil {
		return err
	}
	d.process = exec.CommandContext(context.Background(), "dockerd", "--config-file", config, "--host", d.host(), "--data-root", filepath.Join(d.dir, "data"),
		"--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"), "--iptables=false", "--ip6tables=false", "--userland-proxy=false")
	d.process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	if err := d.process.Start(); err != nil {
		d.process = nil
		return fmt.Errorf("a second Docker Engine, which hack/dockerd.sh installs: %w", err)
	}
	c, err := client.New(client.WithHost(d.host()))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return assert.Poll(context.Background(), "a second Docker Engine answers", func() error {
		_, err := c.Ping(context.Background(), client.PingOptions{})
		return err
	})
}

func (d *secondDocker) stop() error {
	if d.process != nil {
		kill := time.AfterFunc(stopTimeout, func() { _ = d.process.Process.Kill() })
		_ = d.process.Process.Signal(syscall.SIGTERM)
		_ = d.process.Wait()
		kill.Stop()
		d.process = nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, d.dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// checkEmpty fails if Drover created a container on this engine, to which no VirtualMachine is bound.
func (*secondDocker) checkEmpty(ctx context.Context, host string, w *World) error {
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	found, err := listContainers(ctx, c, w)
	if len(found) > 0 {
		return fmt.Errorf("the other engine has the containers %v", found)
	}
	return err
}
