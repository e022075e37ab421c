// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/assert"
)

// Images of the demo guest (examples/demo-guest) that tests put into the Docker engine.
var (
	// GuestPlain ends on SIGTERM.
	GuestPlain = ImageName("plain")
	// GuestOther is another image like GuestPlain.
	GuestOther = ImageName("other")
	// GuestStubborn ignores SIGTERM.
	GuestStubborn = ImageName("stubborn")
	// GuestFailing ends with code 3 immediately.
	GuestFailing = ImageName("failing")
)

// runEnv is the variable in which test/suite passes the name of a run of tests to their processes. Each
// run has separate names of images and a separate value of runLabel, which containers inherit from their
// image, so that two runs do not see each other's images and containers.
const (
	runEnv   = "DROVER_TEST_RUN"
	runLabel = "cloudnative.tw/test-run"
)

// ImageName returns the name of a test image with a tag.
func ImageName(tag string) string { return cmp.Or(os.Getenv(runEnv), "drover-test") + ":" + tag }

var guestEnvironment = map[string]string{GuestPlain: "", GuestOther: "OTHER=1", GuestStubborn: "IGNORE_TERM=1", GuestFailing: "EXIT_CODE=3"}

// guestLabel is the label that identifies the build of the guest in an image.
const guestLabel = "cloudnative.tw/test-guest"

// imageTimeout bounds the creation of all images, and the build of a guest, which fetches a kernel at first.
const imageTimeout = 15 * time.Minute

// DockerClient returns a client of the engine that DOCKER_HOST names, after it has
// imported the guest's images.
func DockerClient(t testing.TB) *client.Client {
	t.Helper()
	c, err := OpenDockerClient()
	assert.NoError(t, err)
	return c
}

// OpenDockerClient is DockerClient for a TestMain.
func OpenDockerClient() (*client.Client, error) {
	c, err := newDockerClient()
	if err != nil {
		err = fmt.Errorf("the tests need a Docker engine, which hack/dockerd.sh installs and starts: %w", err)
	}
	return c, err
}

var newDockerClient = sync.OnceValues(func() (*client.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	return c, ImportGuests(ctx, c)
})

// PauseContainer pauses a container without Drover. It tries again when runc cannot freeze the
// container in time, which happens under cgroup v1 while it starts processes on a busy host.
func PauseContainer(ctx context.Context, c *client.Client, id string) error {
	var refusal error
	err := assert.Poll(ctx, "the container is paused", func() error {
		_, refusal = c.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		if refusal != nil && strings.Contains(refusal.Error(), "unable to freeze") {
			return refusal
		}
		return nil
	})
	return cmp.Or(err, refusal)
}

// ImportGuests imports the guests' images into an engine.
func ImportGuests(ctx context.Context, c *client.Client) error {
	rootfs, err := GuestArchive()
	if err != nil {
		return err
	}
	for _, image := range slices.Sorted(maps.Keys(guestEnvironment)) {
		changes := []string{`ENTRYPOINT ["/demo-guest"]`, "EXPOSE 80/tcp"}
		if env := guestEnvironment[image]; env != "" {
			changes = append(changes, "ENV "+env)
		}
		if err := ImportImage(ctx, c, rootfs, image, changes...); err != nil {
			return err
		}
	}
	return nil
}

// SSHGuest imports the image of hack/ssh-guest.sh into the Docker engine, and returns its name.
// User ann may log in with a key in /home/ann/.ssh/authorized_keys.
func SSHGuest(t testing.TB) string {
	t.Helper()
	image := ImageName("ssh")
	c := DockerClient(t)
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	archive, errs, err := RunCommand(t, BuildTimeout, nil, filepath.Join(root, "hack", "ssh-guest.sh"))
	assert.Require(t, err == nil, "building the guest: %v\n%s", err, errs)
	rootfs, err := os.ReadFile(strings.TrimSpace(archive))
	if err == nil {
		err = ImportImage(t.Context(), c, rootfs, image, `ENTRYPOINT ["/init"]`)
	}
	assert.NoError(t, err)
	return image
}

// GuestArchive returns a tar archive of the demo guest's file system. Its bytes depend only on the source.
var GuestArchive = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "drover-guest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "demo-guest")
	if err := buildBinary(program, "cloudnative.tw/drover/examples/demo-guest", []string{"CGO_ENABLED=0"}); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "demo-guest", Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	err = w.Close()
	return archive.Bytes(), err
})

// ImportImage creates an image, unless it exists with the same root file system.
func ImportImage(ctx context.Context, c *client.Client, rootfs []byte, image string, changes ...string) error {
	sum := sha256.Sum256(rootfs)
	build := hex.EncodeToString(sum[:8])
	old, err := c.ImageInspect(ctx, image)
	if err == nil && old.Config != nil && old.Config.Labels[guestLabel] == build {
		return nil
	}
	changes = append(changes, "LABEL "+guestLabel+"="+build)
	if run := os.Getenv(runEnv); run != "" {
		changes = append(changes, "LABEL "+runLabel+"="+run)
	}
	source := client.ImageImportSource{Source: bytes.NewReader(rootfs), SourceName: "-"}
	res, err := c.ImageImport(ctx, source, image, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return fmt.Errorf("import image %s: %w", image, err)
	}
	defer func() { _ = res.Close() }()
	if _, err = io.Copy(io.Discard, res); err == nil && old.ID != "" {
		_, _ = c.ImageRemove(ctx, old.ID, client.ImageRemoveOptions{}) // unless it is in use
	}
	return err
}

// BuildLayers builds an image of the layer base, which has a shell, and a further layer for each command. It
// returns all layers as Docker saves them, and removes the image.
func BuildLayers(t testing.TB, base []byte, commands ...string) (layers [][]byte) {
	t.Helper()
	c, ctx := DockerClient(t), t.Context()
	tag := ImageName(fmt.Sprintf("built-%d-%d", os.Getpid(), temporaryImages.Add(1)))
	file := "FROM scratch\nADD base.tar /\nENV PATH=/bin\nRUN " + strings.Join(commands, "\nRUN ") + "\n"
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for name, content := range map[string]string{"Dockerfile": file, "base.tar": string(base)} {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
		assert.NoError(t, errors.Join(err, assert.ErrorOf(io.WriteString(w, content))))
	}
	assert.NoError(t, w.Close())
	built, err := c.ImageBuild(ctx, &files, client.ImageBuildOptions{Tags: []string{tag}, NoCache: true, Remove: true, ForceRemove: true, NetworkMode: "none"})
	assert.NoError(t, err)
	said, err := io.ReadAll(built.Body)
	assert.NoError(t, errors.Join(err, built.Body.Close()))
	assert.Require(t, !strings.Contains(string(said), `"error"`), "the image is not built: %s", said)
	defer func() {
		_, err := c.ImageRemove(context.WithoutCancel(ctx), tag, client.ImageRemoveOptions{PruneChildren: true})
		assert.NoError(t, err)
	}()
	saved, err := c.ImageSave(ctx, []string{tag})
	assert.NoError(t, err)
	content, err := io.ReadAll(saved)
	assert.NoError(t, errors.Join(err, saved.Close()))
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, nil)
	assert.NoError(t, err)
	all, err := image.Layers()
	assert.NoError(t, err)
	for _, layer := range all {
		archive, err := layer.Uncompressed()
		assert.NoError(t, err)
		content, err := io.ReadAll(archive)
		assert.NoError(t, errors.Join(err, archive.Close()))
		layers = append(layers, content)
	}
	return layers
}

// temporaryImages counts the images that were built or loaded, for unique names.
var temporaryImages atomic.Int64

// ExportLayers makes a container of an image with the given layers and returns an archive of its files. It removes
// both. The error, if any, says why the engine does not load the image.
func ExportLayers(t testing.TB, layers ...[]byte) ([]byte, error) {
	t.Helper()
	c, ctx := DockerClient(t), t.Context()
	tag, err := name.NewTag(ImageName(fmt.Sprintf("exported-%d-%d", os.Getpid(), temporaryImages.Add(1))))
	assert.NoError(t, err)
	// The label makes the image's ID unique, so that no other test removes the image.
	image, err := LayersImage(v1.Config{Entrypoint: []string{"/none"}, Labels: map[string]string{"exported": tag.Name()}}, layers...)
	assert.NoError(t, err)
	var archive bytes.Buffer
	assert.NoError(t, tarball.Write(tag, image, &archive))
	loaded, err := c.ImageLoad(ctx, &archive)
	assert.NoError(t, err)
	said, err := io.ReadAll(loaded)
	assert.NoError(t, errors.Join(err, loaded.Close()))
	if strings.Contains(string(said), `"error"`) {
		return nil, fmt.Errorf("the engine does not load the image: %s", said)
	}
	made, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{Config: &container.Config{Image: tag.Name()}})
	assert.NoError(t, err)
	defer func() {
		background := context.WithoutCancel(ctx)
		_, containerErr := c.ContainerRemove(background, made.ID, client.ContainerRemoveOptions{Force: true})
		_, imageErr := c.ImageRemove(background, tag.Name(), client.ImageRemoveOptions{})
		assert.NoError(t, errors.Join(containerErr, imageErr))
	}()
	exported, err := c.ContainerExport(ctx, made.ID, client.ContainerExportOptions{})
	assert.NoError(t, err)
	content, err := io.ReadAll(exported)
	assert.NoError(t, errors.Join(err, exported.Close()))
	return content, nil
}

// RunInContainer pulls an image from a registry on this host, runs a command in a container that may
// mount file systems, and returns what it prints. It removes the image and the container.
func RunInContainer(t testing.TB, image string, command ...string) []byte {
	t.Helper()
	c, ctx := DockerClient(t), t.Context()
	pulled, err := c.ImagePull(ctx, image, client.ImagePullOptions{})
	assert.NoError(t, err)
	assert.NoError(t, pulled.Wait(ctx))
	t.Cleanup(func() {
		_, err := c.ImageRemove(context.WithoutCancel(ctx), image, client.ImageRemoveOptions{Force: true})
		assert.NoError(t, err)
	})
	made, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Entrypoint: command},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", CapAdd: []string{"SYS_ADMIN"}, SecurityOpt: []string{"seccomp=unconfined", "apparmor=unconfined"},
		},
	})
	assert.NoError(t, err)
	defer func() {
		_, err := c.ContainerRemove(context.WithoutCancel(ctx), made.ID, client.ContainerRemoveOptions{Force: true})
		assert.NoError(t, err)
	}()
	printed, err := c.ContainerAttach(ctx, made.ID, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	assert.NoError(t, err)
	defer printed.Close()
	assert.NoError(t, assert.ErrorOf(c.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})))
	var out, errs bytes.Buffer
	assert.NoError(t, assert.ErrorOf(stdcopy.StdCopy(&out, &errs, printed.Reader)))
	assert.Require(t, errs.Len() == 0, "%q of image %s prints %s", command, image, errs.String())
	return out.Bytes()
}

// NewRegistry starts a registry of images and returns its host. If wrap is not nil, the handler that it returns
// answers the requests.
func NewRegistry(t testing.TB, wrap func(http.Handler) http.Handler) (host string) {
	t.Helper()
	server := StartRegistry(wrap)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// StartRegistry is NewRegistry for callers outside tests. The caller must Close the registry.
func StartRegistry(wrap func(http.Handler) http.Handler) *httptest.Server {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	return httptest.NewServer(handler)
}

// StartRegistryOf starts a registry with one image, and returns the image's reference too. The caller must Close the registry.
func StartRegistryOf(image v1.Image) (server *httptest.Server, reference string, err error) {
	server = StartRegistry(nil)
	reference = server.Listener.Addr().String() + "/image:1"
	if err := writeImage(reference, image); err != nil {
		server.Close()
		return nil, "", err
	}
	return server, reference, nil
}

// PushImage pushes an image to a reference.
func PushImage(t testing.TB, reference string, image v1.Image) {
	t.Helper()
	assert.NoError(t, writeImage(reference, image))
}

func writeImage(reference string, image v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	return remote.Write(ref, image)
}

// TarOf returns a tar archive with one file.
func TarOf(t testing.TB, path string, content []byte) []byte {
	t.Helper()
	archive, err := MakeTar(path, content)
	assert.NoError(t, err)
	return archive
}

// MakeTar is TarOf for callers outside tests: it returns the error.
func MakeTar(path string, content []byte) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o555, Size: int64(len(content))})
	_, writeErr := w.Write(content)
	return archive.Bytes(), errors.Join(err, writeErr, w.Close())
}

// busyBoxNames are the commands in the image of BusyBoxImage.
var busyBoxNames = strings.Fields("sh ash cat echo env hostname httpd id ip kill ls mkdir mount nc pwd rm sleep stat stty tar test touch true false tty wget df head wc grep sync")

// BusyBoxImage returns a container image with BusyBox, a user ann of the groups ann and staff, and the given configuration.
func BusyBoxImage(t testing.TB, config v1.Config) v1.Image {
	t.Helper()
	image, err := MakeBusyBoxImage(t.Context(), config)
	assert.NoError(t, err)
	return image
}

// MakeBusyBoxImage is BusyBoxImage for callers outside tests: it returns the error.
func MakeBusyBoxImage(ctx context.Context, config v1.Config) (v1.Image, error) {
	layer, err := BusyBoxLayer(ctx)
	if err != nil {
		return nil, err
	}
	return LayersImage(config, layer)
}

// BusyBox returns the content of the program that hack/busybox.sh fetches.
func BusyBox(ctx context.Context) ([]byte, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	path, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "busybox.sh")).Output()
	if err != nil {
		return nil, fmt.Errorf("fetching BusyBox: %w", err)
	}
	return os.ReadFile(strings.TrimSpace(string(path)))
}

// BusyBoxLayer returns the only layer of BusyBoxImage.
func BusyBoxLayer(ctx context.Context) ([]byte, error) {
	program, err := BusyBox(ctx)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	add := func(h tar.Header, content string) {
		h.Size = int64(len(content))
		errs = append(errs, w.WriteHeader(&h), assert.ErrorOf(io.WriteString(w, content)))
	}
	for _, folder := range []string{"bin/", "etc/", "home/"} {
		add(tar.Header{Name: folder, Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(program))
	for _, name := range busyBoxNames {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeLink, Linkname: "bin/busybox", Mode: 0o755}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nann:x:1000:\nstaff:x:50:ann\n")
	add(tar.Header{Name: "home/ann/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}, "")
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	return archive.Bytes(), errors.Join(append(errs, w.Close())...)
}

// LayersImage returns a container image with the given configuration and layers, which are tar archives.
func LayersImage(config v1.Config, layers ...[]byte) (v1.Image, error) {
	image := empty.Image
	for _, archive := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
		if err == nil {
			image, err = mutate.AppendLayers(image, layer)
		}
		if err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: config, RootFS: file.RootFS})
}

// GuestKernel returns the folder of the kernel that boots container images.
func GuestKernel(t testing.TB) string {
	t.Helper()
	guest, err := BuildImageGuest()
	assert.NoError(t, err)
	return filepath.Dir(guest.Kernel)
}
