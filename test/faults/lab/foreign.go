// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// The UIDs of servers that are not this world's: one of another cluster, and one that was
// released there.
const (
	foreignUID         = "0c7a6a3e-58a1-4f3c-9c52-000000000001"
	foreignReleasedUID = "0c7a6a3e-58a1-4f3c-9c52-000000000002"
)

// foreignFiles are files of an engine's folder that are not this world's.
type foreignFiles map[string]string

// foreignServers are those servers on the fake engine, and a file that does not describe a server.
var foreignServers = foreignFiles{
	foreignUID + ".json":                            `{"clusterID": "another", "namespace": "default", "name": "vm-1", "state": "Running", "load": 0}`,
	"retained/" + foreignReleasedUID + ".fake.json": `{"clusterID": "another", "namespace": "default", "name": "vm-1", "retained": true, "load": 0}`,
	"notes.txt": "not a server",
}

// foreignMachines are the same with the driver qemu.
var foreignMachines = foreignFiles{
	filepath.Join(instance.VMsDir, foreignUID, instance.RecordFile):                           foreignMachine(foreignUID),
	filepath.Join(instance.VMsDir, foreignUID, instance.RootDiskFile):                         "the disk of another cluster",
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RecordFile):   foreignMachine(foreignReleasedUID),
	filepath.Join(instance.RetainedDir, foreignReleasedUID+".another", instance.RootDiskFile): "the disk of another cluster",
	"notes.txt": "not a machine",
}

func foreignMachine(uid string) string {
	return `{"format": ` + strconv.Itoa(record.Format) + `, "clusterID": "another", "uid": "` + uid + `", "id": "another", "namespace": "default", "name": "vm-1", "epoch": 1}`
}

// write puts the files into an engine's folder.
func (f foreignFiles) write(dir string) error {
	for name, content := range f {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// check returns which of the files are not as they were (O6).
func (f foreignFiles) check(dir string) (broken []Violation) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != f[name] {
			broken = append(broken, rules.Broken(rules.O6, "%s, which is not Drover's, is %q, %v", name, got, err))
		}
	}
	return broken
}

// foreignContainer is a container of another cluster, and its inspection.
type foreignContainer struct{ id, inspection string }

// startForeignContainer starts a container for a VirtualMachine of the same name in another
// cluster, whose id is made of this one's: no other world has it.
func startForeignContainer(ctx context.Context, c *client.Client, w *World) (f foreignContainer, err error) {
	created, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: "another-" + w.ClusterID,
		Config: &container.Config{Image: framework.GuestPlain, Labels: map[string]string{
			docker.LabelCluster: "another-" + w.ClusterID, docker.LabelUID: foreignUID,
			docker.LabelNamespace: w.Name, docker.LabelName: "vm-1",
		}},
	})
	if err != nil {
		return f, err
	}
	f.id = created.ID
	_, err = c.ContainerStart(ctx, f.id, client.ContainerStartOptions{})
	if err == nil {
		f.inspection, err = f.inspect(ctx, c)
	}
	return f, err
}

func (f foreignContainer) inspect(ctx context.Context, c *client.Client) (string, error) {
	found, err := c.ContainerInspect(ctx, f.id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(found.Container)
	return string(text), err
}

// check returns whether the container is not as it was (O6).
func (f foreignContainer) check(ctx context.Context, c *client.Client) []Violation {
	got, err := f.inspect(ctx, c)
	if err == nil && got == f.inspection {
		return nil
	}
	return []Violation{rules.Broken(rules.O6, "the container of another cluster was %s, and is %s, %v", f.inspection, cmp.Or(got, "unknown"), err)}
}

// remove removes the container, if there is one.
func (f foreignContainer) remove(ctx context.Context, c *client.Client) error {
	if f.id == "" {
		return nil
	}
	_, err := c.ContainerRemove(ctx, f.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// startForeignRegistry starts a registry without images, as long as the tests run.
func startForeignRegistry() (address string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	answer := func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		if strings.Trim(req.URL.Path, "/") != "v2" {
			rw.WriteHeader(http.StatusNotFound)
		}
		_, _ = fmt.Fprintf(rw, `{"errors": [{"code": "MANIFEST_UNKNOWN", "message": %q}]}`, foreignAnswer)
	}
	server := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), nil
}
