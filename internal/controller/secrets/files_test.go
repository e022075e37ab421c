// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// fromSecret returns a folder of the Secret one.
func fromSecret(name string, selection api.FileSelection) api.FileMount {
	return api.FileMount{MountPath: "/s", Secret: &api.SecretFiles{SecretName: name, FileSelection: selection}}
}

func items(all ...api.KeyToPath) api.FileSelection { return api.FileSelection{Items: all} }

// deepItems returns items with 255 folders each.
func deepItems(count int) (all []api.KeyToPath) {
	for n := range count {
		all = append(all, api.KeyToPath{Key: "b", Path: fmt.Sprint(n) + strings.Repeat("/d", 255)})
	}
	return all
}

// filesCluster returns a client with a Secret and a ConfigMap.
func filesCluster() *fake.ClientBuilder {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	many := map[string][]byte{}
	for n := range maxFiles + 1 {
		many[fmt.Sprint(n)] = nil
	}
	return fake.NewClientBuilder().WithObjects(
		&corev1.Secret{ObjectMeta: meta("one"), Data: map[string][]byte{"a": []byte("hunter2\x00"), "b": nil}},
		&corev1.Secret{ObjectMeta: meta("large"), Data: map[string][]byte{"a": make([]byte, maxFilesBytes), "b": []byte("b")}},
		&corev1.Secret{ObjectMeta: meta("many"), Data: many},
		&corev1.ConfigMap{ObjectMeta: meta("two"), Data: map[string]string{"a": "text"}, BinaryData: map[string][]byte{"z": {0xff}}},
	)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	optional := func(s api.FileSelection) api.FileSelection {
		s.Optional = true
		return s
	}
	for name, c := range map[string]struct {
		mount api.FileMount
		want  string
		err   string
	}{
		"all keys":         {fromSecret("one", api.FileSelection{}), `a 644 "hunter2\x00", b 644 ""`, ""},
		"ConfigMap":        {api.FileMount{MountPath: "/s", ConfigMap: &api.ConfigMapFiles{Name: "two"}}, `a 644 "text", z 644 "\xff"`, ""},
		"default mode":     {fromSecret("one", api.FileSelection{DefaultMode: new(int32(0o400))}), `a 400 "hunter2\x00", b 400 ""`, ""},
		"items":            {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "x/y", Mode: new(int32(0o755))}, api.KeyToPath{Key: "b", Path: "c"})), `c 644 "", x/y 755 ""`, ""},
		"no Secret":        {fromSecret("none", api.FileSelection{}), "", `spec.files[0], /s: Secret "none" does not exist in the VirtualMachine's namespace`},
		"no ConfigMap":     {api.FileMount{MountPath: "/s", ConfigMap: &api.ConfigMapFiles{Name: "none"}}, "", `ConfigMap "none" does not exist`},
		"no key":           {fromSecret("one", items(api.KeyToPath{Key: "none", Path: "x"})), "", `Secret "one" lacks the key "none"`},
		"optional":         {fromSecret("none", optional(api.FileSelection{})), "", ""},
		"optional key":     {fromSecret("one", optional(items(api.KeyToPath{Key: "none", Path: "x"}, api.KeyToPath{Key: "b", Path: "b"}))), `b 644 ""`, ""},
		"too large":        {fromSecret("large", api.FileSelection{}), "", `has 1048577 bytes in 2 files: at most 1048576 bytes in 1024 files are allowed`},
		"a part of it":     {fromSecret("large", items(api.KeyToPath{Key: "b", Path: "b"})), `b 644 "b"`, ""},
		"too many":         {fromSecret("many", api.FileSelection{}), "", "in 1025 files"},
		"file and folder":  {fromSecret("one", items(api.KeyToPath{Key: "a", Path: "x"}, api.KeyToPath{Key: "b", Path: "x/y"})), "", `items make "x" a file and, for "x/y", a folder`},
		"long name":        {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "x/" + strings.Repeat("ä", 128)})), "", "has a name of 256 bytes: at most 255 are allowed"},
		"long mountPath":   {api.FileMount{MountPath: "/" + strings.Repeat("s", 256), Secret: &api.SecretFiles{SecretName: "one"}}, "", "has a name of 256 bytes"},
		"climbs":           {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "x/../../y"})), "", `"x/../../y" is not a relative path`},
		"dots":             {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "..data"})), "", `or begins with two dots`},
		"absolute":         {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "/x"})), "", `is not a relative path`},
		"many folders":     {fromSecret("one", items(deepItems(5)...)), "", "items have 1275 folders: at most 1024 are allowed"},
		"neither of both":  {api.FileMount{MountPath: "/s"}, "", "exactly one of secret and configMap is required"},
		"same key, 2 path": {fromSecret("one", items(api.KeyToPath{Key: "b", Path: "1"}, api.KeyToPath{Key: "b", Path: "2"})), `1 644 "", 2 644 ""`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) { s.Files = []api.FileMount{c.mount} }).Obj()
			mounts, err := ReadFiles(t.Context(), filesCluster().Build(), vm)
			if c.err != "" {
				assert.True(t, errors.Is(err, driver.ErrRetry) && driver.ReasonOf(err) == api.ReasonFilesUnavailable, "the error is %v, reason %s", err, driver.ReasonOf(err))
				assert.Contains(t, "the error", err.Error(), c.err)
				return
			}
			assert.NoError(t, err)
			assert.Require(t, len(mounts) == 1 && mounts[0].MountPath == "/s" && mounts[0].Revision != "", "the folders are %+v", mounts)
			var texts []string
			for _, f := range mounts[0].Files {
				texts = append(texts, fmt.Sprintf("%s %o %q", f.Path, f.Mode, f.Data.Reveal()))
			}
			assert.Equal(t, "files", strings.Join(texts, ", "), c.want)
			assert.True(t, !strings.Contains(fmt.Sprintf("%+v", mounts), "hunter2"), "a log shows %+v", mounts)
		})
	}
}

// TestFilesErr checks that a spec without its files is complete in all else, since only a start needs them.
func TestFilesErr(t *testing.T) {
	t.Parallel()
	vm := framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) {
		s.Files, s.Env = []api.FileMount{fromSecret("none", api.FileSelection{})}, []api.EnvVar{{Name: "A", Value: "1"}}
	}).Obj()
	spec := driver.ServerSpec{Files: []driver.FileMount{{MountPath: "/s"}}}
	assert.NoError(t, Resolve(t.Context(), filesCluster().Build(), vm, &spec))
	assert.True(t, spec.FilesErr != nil && len(spec.Files) == 1 && spec.Files[0].MountPath == "/s" && len(spec.Env) == 1, "the spec is %+v", spec)
}

// TestRevision checks that a revision is another one after each change of the object or of the selection.
func TestRevision(t *testing.T) {
	t.Parallel()
	from, mount := Version{Text: "Secret one", UID: "1", ResourceVersion: "1"}, fromSecret("one", api.FileSelection{})
	seen := map[string]bool{}
	for _, change := range []func() string{
		func() string { return from.Revision(mount) },
		func() string { v := from; v.ResourceVersion = "2"; return v.Revision(mount) },
		func() string { v := from; v.UID = "2"; return v.Revision(mount) },
		func() string {
			return from.Revision(fromSecret("one", api.FileSelection{DefaultMode: new(int32(0o600))}))
		},
	} {
		r := change()
		assert.True(t, !seen[r], "two have the revision %s", r)
		seen[r] = true
	}
}

// TestVersion checks that the version of an object, which is read without its content, has the revision of its folder, so
// that the content is read after changes alone.
func TestVersion(t *testing.T) {
	t.Parallel()
	live := filesCluster().Build()
	for name, f := range map[string]api.FileMount{
		"Secret":    fromSecret("one", api.FileSelection{}),
		"ConfigMap": {MountPath: "/s", ConfigMap: &api.ConfigMapFiles{Name: "two"}},
		"none":      fromSecret("none", api.FileSelection{Optional: true}),
	} {
		version, err := ReadVersion(t.Context(), live, "default", ObjectOf(f))
		assert.NoError(t, err)
		mount, err := readMount(t.Context(), live, "default", f)
		assert.NoError(t, err)
		assert.Equal(t, name, version.Revision(f), mount.Revision)
		assert.True(t, version.CheckExists(f) == nil, "%s: %v", name, version.CheckExists(f))
	}
	f := fromSecret("none", api.FileSelection{})
	version, err := ReadVersion(t.Context(), live, "default", ObjectOf(f))
	assert.True(t, err == nil && version.CheckExists(f) != nil, "a Secret that does not exist has the version %+v, %v", version, err)
	_, err = ReadVersion(t.Context(), live, "default", ObjectOf(api.FileMount{}))
	assert.True(t, err != nil, "a folder without an object has a version")
}
