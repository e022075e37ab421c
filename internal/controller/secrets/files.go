// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// Bounds of one folder. maxFilesBytes is also how much a Secret or ConfigMap may have.
const (
	maxFilesBytes = 1 << 20
	maxFiles      = 1024
	maxFolders    = 1024
	maxName       = 255 // bytes of a name in a path, as in Linux
	defaultMode   = 0o644
)

// ReadFiles returns the folders of spec.files, whose Secrets and ConfigMaps it reads live.
//
// The error wraps driver.ErrRetry and has api.ReasonFilesUnavailable.
func ReadFiles(ctx context.Context, live client.Reader, vm *api.VirtualMachine) (mounts []driver.FileMount, err error) {
	for n := range vm.Spec.Files {
		mount, err := ReadMount(ctx, live, vm, n)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

// ReadMount returns the folder of spec.files[n], with the errors of ReadFiles. With an error of the object's content it
// returns the Revision alone.
func ReadMount(ctx context.Context, live client.Reader, vm *api.VirtualMachine, n int) (driver.FileMount, error) {
	f := vm.Spec.Files[n]
	mount, err := readMount(ctx, live, vm.Namespace, f)
	if err != nil {
		return driver.FileMount{Revision: mount.Revision}, UnavailableError(n, f, err)
	}
	return mount, nil
}

// UnavailableError returns the error of ReadFiles for spec.files[n].
func UnavailableError(n int, f api.FileMount, err error) error {
	return driver.WithReason(api.ReasonFilesUnavailable, driver.Errorf(driver.ErrRetry, "spec.files[%d], %s: %w", n, f.MountPath, err))
}

// Object identifies the Secret or ConfigMap of a folder in its namespace.
type Object struct{ Kind, Name string }

// ObjectOf returns the object of a folder.
func ObjectOf(f api.FileMount) Object {
	switch {
	case f.Secret != nil:
		return Object{"Secret", f.Secret.SecretName}
	case f.ConfigMap != nil:
		return Object{"ConfigMap", f.ConfigMap.Name}
	}
	return Object{}
}

// selectionOf returns the selection of a folder.
func selectionOf(f api.FileMount) api.FileSelection {
	switch {
	case f.Secret != nil:
		return f.Secret.FileSelection
	case f.ConfigMap != nil:
		return f.ConfigMap.FileSelection
	}
	return api.FileSelection{}
}

// Version is the version of a Secret or ConfigMap. Its UID and ResourceVersion are empty if the object does not exist.
type Version struct {
	// Text names the object for users.
	Text            string
	UID             types.UID
	ResourceVersion string
}

var errNoObject = errors.New("exactly one of secret and configMap is required")

// ReadVersion reads the version of an object without its content.
func ReadVersion(ctx context.Context, live client.Reader, namespace string, o Object) (Version, error) {
	if o == (Object{}) {
		return Version{}, errNoObject
	}
	found := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: o.Kind}}
	err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.Name}, found)
	if err != nil {
		found = &metav1.PartialObjectMetadata{}
	}
	return versionOf(o, found), client.IgnoreNotFound(err)
}

func versionOf(o Object, found metav1.Object) Version {
	return Version{fmt.Sprintf("%s %q", o.Kind, o.Name), found.GetUID(), found.GetResourceVersion()}
}

// CheckExists returns an error for an object that does not exist, unless the folder is optional.
func (v Version) CheckExists(f api.FileMount) error {
	if v.UID == "" && v.ResourceVersion == "" && !selectionOf(f).Optional {
		return fmt.Errorf("%s does not exist in the VirtualMachine's namespace", v.Text)
	}
	return nil
}

// Revision returns a hash of the object's version and of the folder's selection, and not of the content.
func (v Version) Revision(f api.FileMount) string {
	text, _ := json.Marshal([]any{v, selectionOf(f)}) // never fails
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func readMount(ctx context.Context, live client.Reader, namespace string, f api.FileMount) (driver.FileMount, error) {
	if err := checkNames(f.MountPath); err != nil {
		return driver.FileMount{}, err
	}
	version, data, err := readObject(ctx, live, namespace, ObjectOf(f))
	if err == nil {
		err = version.CheckExists(f)
	}
	if err != nil {
		return driver.FileMount{}, err
	}
	files, err := selectFiles(version.Text, data, selectionOf(f))
	return driver.FileMount{MountPath: f.MountPath, Revision: version.Revision(f), Files: files}, err
}

// readObject reads an object with its content.
func readObject(ctx context.Context, live client.Reader, namespace string, o Object) (_ Version, data map[string][]byte, err error) {
	var found client.Object
	key := types.NamespacedName{Namespace: namespace, Name: o.Name}
	switch o.Kind {
	case "Secret":
		secret := &corev1.Secret{}
		found, err = secret, live.Get(ctx, key, secret)
		data = secret.Data
	case "ConfigMap":
		configMap := &corev1.ConfigMap{}
		found, err = configMap, live.Get(ctx, key, configMap)
		data = maps.Clone(configMap.BinaryData)
		for name, text := range configMap.Data {
			if data == nil {
				data = map[string][]byte{}
			}
			data[name] = []byte(text)
		}
	default:
		return Version{}, nil, errNoObject
	}
	if apierrors.IsNotFound(err) {
		return versionOf(o, &metav1.PartialObjectMetadata{}), nil, nil
	}
	return versionOf(o, found), data, err
}

// selectFiles returns the files that a selection makes of the data of an object, sorted by their paths.
func selectFiles(name string, from map[string][]byte, selection api.FileSelection) ([]driver.File, error) {
	items := selection.Items
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(from)) {
			items = append(items, api.KeyToPath{Key: key, Path: key})
		}
	}
	size, mode := 0, fs.FileMode(defaultMode)
	if selection.DefaultMode != nil {
		mode = fs.FileMode(*selection.DefaultMode) & fs.ModePerm //nolint:gosec // 0 to 0777 by the schema
	}
	var files []driver.File
	for _, item := range items {
		data, ok := from[item.Key]
		switch {
		case !ok && selection.Optional:
			continue
		case !ok:
			return nil, fmt.Errorf("%s lacks the key %q", name, item.Key)
		}
		file := driver.File{Path: item.Path, Mode: mode, Data: driver.NewSecret(string(data))}
		if item.Mode != nil {
			file.Mode = fs.FileMode(*item.Mode) & fs.ModePerm //nolint:gosec // 0 to 0777 by the schema
		}
		files, size = append(files, file), size+len(data)
	}
	if size > maxFilesBytes || len(files) > maxFiles {
		return nil, fmt.Errorf("%s has %d bytes in %d files: at most %d bytes in %d files are allowed", name, size, len(files), maxFilesBytes, maxFiles)
	}
	slices.SortFunc(files, func(a, b driver.File) int { return cmp.Compare(a.Path, b.Path) })
	return files, checkPaths(files)
}

// checkPaths returns an error if a file is also a folder, or if no file of the guest can have a path.
func checkPaths(files []driver.File) error {
	folders := map[string]string{} // to a file in them
	for _, f := range files {
		if !filepath.IsLocal(f.Path) || filepath.Clean(f.Path) != f.Path || f.Path == "." || strings.HasPrefix(f.Path, "..") {
			return fmt.Errorf("the path %q is not a relative path without . and .., or begins with two dots", f.Path)
		}
		if err := checkNames(f.Path); err != nil {
			return err
		}
		for folder := path.Dir(f.Path); folder != "."; folder = path.Dir(folder) {
			folders[folder] = f.Path
		}
	}
	if len(folders) > maxFolders {
		return fmt.Errorf("items have %d folders: at most %d are allowed", len(folders), maxFolders)
	}
	for _, f := range files {
		if inside := folders[f.Path]; inside != "" {
			return fmt.Errorf("items make %q a file and, for %q, a folder", f.Path, inside)
		}
	}
	return nil
}

// checkNames returns an error if a name in a path is too long.
func checkNames(p string) error {
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return fmt.Errorf("the path %q has a name of %d bytes: at most %d are allowed", p, len(name), maxName)
		}
	}
	return nil
}
