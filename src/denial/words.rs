//! How programs spell an errno: the C library's phrase in nine languages, and the symbol.
//!
//! Rule: a word found here is where reading starts and never a verdict. Phrases match without regard
//! to the case of ASCII letters, for Go and Node print them in lower case; symbols match as they are.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

/// What a match stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// An errno, by the C library's phrase.
    Errno(&'static str),
    /// An errno, by a symbol such as `EROFS`.
    Symbol(&'static str),
    /// The start of a program's own wording, told apart by the readers.
    Wording,
}

/// A sign and where it stands in the line, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it stands for.
    pub sign: Sign,
    /// Where it starts.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

/// Every sign in the line, from left to right, none overlapping another.
pub fn signs(line: &[u8]) -> impl Iterator<Item = Found> {
    TABLE.automaton.iter().flat_map(move |automaton| {
        automaton.find_iter(line).filter_map(move |found| {
            let (start, end) = (found.start(), found.end());
            let (sign, spelled) = TABLE.signs[found.pattern().as_usize()];
            let letter = |at: Option<&u8>| {
                at.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
            };
            let stands_alone =
                !letter(start.checked_sub(1).and_then(|at| line.get(at))) && !letter(line.get(end));
            let genuine = !matches!(sign, Sign::Symbol(_))
                || (stands_alone && &line[start..end] == spelled.as_bytes());
            genuine.then_some(Found { sign, start, end })
        })
    })
}

/// Whether the line holds any sign.
pub fn carries(line: &[u8]) -> bool {
    signs(line).next().is_some()
}

struct Table {
    // `None` can't happen for this fixed table; matching nothing is then the answer.
    automaton: Option<AhoCorasick>,
    signs: Vec<(Sign, &'static str)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut patterns: Vec<&str> = Vec::new();
    let mut signs = Vec::new();
    for (errno, phrases) in PHRASES {
        for phrase in *phrases {
            patterns.push(phrase);
            signs.push((Sign::Errno(errno), *phrase));
        }
        patterns.push(errno);
        signs.push((Sign::Symbol(errno), *errno));
    }
    for (symbol, errno) in OTHER_SYMBOLS {
        patterns.push(symbol);
        signs.push((Sign::Symbol(errno), *symbol));
    }
    for wording in WORDINGS {
        patterns.push(wording);
        signs.push((Sign::Wording, *wording));
    }
    let automaton = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostLongest)
        .build(&patterns)
        .ok();
    Table { automaton, signs }
});

/// Symbols of runtimes for what the C library calls otherwise.
const OTHER_SYMBOLS: &[(&str, &str)] = &[
    ("ENOTFOUND", "EAI_NONAME"),
    ("AccessDeniedException", "EACCES"),
    ("UnknownHostException", "EAI_AGAIN"),
    ("ReadOnlyFilesystem", "EROFS"),
    ("PermissionDenied", "EACCES"),
];

/// Where a program's own wording of a failure starts.
const WORDINGS: &[&str] = &[
    "could not resolve",
    "kann nicht aufgelöst werden",
    "impossible de résoudre",
    "no se pudo resolver",
    "não foi possível resolver",
    "не удаётся разрешить",
    "解決できません",
    "无法解析",
    "해석할 수 없",
    "couldn't resolve",
    "unable to resolve",
    "can't resolve",
    "temporary failure resolving",
    "could not translate host name",
    "failed to lookup address",
    "failed to resolve",
    "name resolution",
    "bad address '",
    "network unreachable",
    "no servers could be reached",
    "failed to connect to",
    "couldn't connect to",
    "could not connect to",
    "cannot connect to",
    "can't connect to",
    "unable to connect to",
    "connection to server",
    "no new privileges",
    "effective uid is not 0",
    "must be setuid",
    "missing cap_net_raw",
    "su: system error",
    "must be owned by uid 0",
    "attempt to write a readonly database",
    "failure writing output to destination",
    "could not create",
    "couldn't create",
    "cannot create",
    "can't create",
    "unable to create",
    "failed to create",
    "error creating",
    "could not write",
    "couldn't write",
    "cannot write",
    "can't write",
    "unable to write",
    "failed to write",
    "error writing",
    "cannot save",
    "could not save",
    "failed to save",
    "could not open",
    "couldn't open",
    "cannot open",
    "can't open",
    "unable to open",
    "failed to open",
    "no usable temporary directory",
    "is not writable",
    "not writeable",
    "new namespace",
    "creating new namespace",
    "(from versions: none)",
    "file size limit exceeded",
];

const PHRASES: &[(&str, &[&str])] = &[
    (
        "EPERM",
        &[
            "Operation not permitted",
            "Die Operation ist nicht erlaubt",
            "Opération non permise",
            "不允许的操作",
            "許可されていない操作です",
            "Operación no permitida",
            "Операция не позволена",
            "명령을 허용하지 않음",
            "Operação não permitida",
        ],
    ),
    (
        "ESRCH",
        &[
            "No such process",
            "Kein passender Prozess gefunden",
            "Aucun processus de ce type",
            "没有那个进程",
            "そのようなプロセスはありません",
            "No existe el proceso",
            "Нет такого процесса",
            "그런 프로세스가 없음",
            "Processo inexistente",
        ],
    ),
    (
        "ENOENT",
        &[
            "No such file or directory",
            "Datei oder Verzeichnis nicht gefunden",
            "Aucun fichier ou dossier de ce type",
            "没有那个文件或目录",
            "そのようなファイルやディレクトリはありません",
            "No existe el fichero o el directorio",
            "Нет такого файла или каталога",
            "그런 파일이나 디렉터리가 없습니다",
            "Arquivo ou diretório inexistente",
        ],
    ),
    (
        "EACCES",
        &[
            "Permission denied",
            "Keine Berechtigung",
            "Permission non accordée",
            "权限不够",
            "許可がありません",
            "Permiso denegado",
            "Отказано в доступе",
            "허가 거부",
            "Permissão negada",
        ],
    ),
    (
        "EBUSY",
        &[
            "Device or resource busy",
            "Resource busy",
            "Das Gerät oder die Ressource ist belegt",
            "Périphérique ou ressource occupé",
            "设备或资源忙",
            "デバイスもしくはリソースがビジー状態です",
            "Dispositivo o recurso ocupado",
            "Устройство или ресурс занято",
            "장치나 자원이 동작 중",
            "Dispositivo ou recurso está ocupado",
        ],
    ),
    (
        "EXDEV",
        &[
            "Invalid cross-device link",
            "Cross-device link",
            "Ungültiger Link über Gerätegrenzen hinweg",
            "Lien physique inter-périphérique invalide",
            "无效的跨设备链接",
            "無効なクロスデバイスリンクです",
            "Enlace cruzado entre dispositivos no permitido",
            "Неверная ссылка между устройствами",
            "부적절한 장치간 연결",
            "Link entre dispositivos inválido",
        ],
    ),
    (
        "EROFS",
        &[
            "Read-only file system",
            "Read only file system",
            "Das Dateisystem ist nur lesbar",
            "Système de fichiers accessible en lecture seulement",
            "只读文件系统",
            "読み込み専用ファイルシステムです",
            "Sistema de ficheros de sólo lectura",
            "Файловая система доступна только для чтения",
            "읽기전용 파일 시스템",
            "Sistema de arquivos somente para leitura",
            "Sistema de archivos de solo lectura",
            "Dateisystem ist nur lesbar",
        ],
    ),
    (
        "ENOSYS",
        &[
            "Function not implemented",
            "Die angeforderte Funktion ist nicht implementiert",
            "Fonction non implantée",
            "函数未实现",
            "関数は実装されていません",
            "Función no implementada",
            "Функция не реализована",
            "함수를 구현하지 않았습니다",
            "Função não implementada",
        ],
    ),
    (
        "EADDRNOTAVAIL",
        &[
            "Cannot assign requested address",
            "Address not available",
            "Die angeforderte Adresse kann nicht zugewiesen werden",
            "Ne peut attribuer l'adresse demandée",
            "无法指定被请求的地址",
            "要求アドレスに割り当てられません",
            "No se puede asignar la dirección solicitada",
            "Невозможно назначить запрошенный адрес",
            "요청한 주소를 배정할 수 없습니다",
            "Não foi possível acessar o endereço requisitado",
        ],
    ),
    (
        "ENETDOWN",
        &[
            "Network is down",
            "Das Netzwerk ist nicht aktiv",
            "Le réseau ne fonctionne pas",
            "网络已关闭",
            "ネットワークが落ちています",
            "La red no está activa",
            "Сеть не работает",
            "네트워크가 죽었습니다",
            "A rede não responde",
        ],
    ),
    (
        "ENETUNREACH",
        &[
            "Network is unreachable",
            "Network unreachable",
            "Das Netzwerk ist nicht erreichbar",
            "Le réseau n'est pas accessible",
            "网络不可达",
            "ネットワークに届きません",
            "La red es inaccesible",
            "Сеть недоступна",
            "네트워크가 접근 불가능합니다",
            "A rede está fora de alcance",
        ],
    ),
    (
        "EHOSTUNREACH",
        &[
            "No route to host",
            "Host is unreachable",
            "Keine Route zum Zielrechner",
            "Aucun chemin d'accès pour atteindre l'hôte cible",
            "没有到主机的路由",
            "ホストへの経路がありません",
            "No existe ninguna ruta hasta el `host'",
            "Нет маршрута до узла",
            "호스트로 갈 루트가 없음",
            "Não há rota para o host",
        ],
    ),
    (
        "ECONNREFUSED",
        &[
            "Connection refused",
            "Verbindungsaufbau abgelehnt",
            "Connexion refusée",
            "拒绝连接",
            "接続を拒否されました",
            "Conexión rehusada",
            "В соединении отказано",
            "연결이 거부됨",
            "Conexão recusada",
            "Conexión rechazada",
        ],
    ),
    (
        "EAI_AGAIN",
        &[
            "Temporary failure in name resolution",
            "Temporärer Fehler bei der Namensauflösung",
            "Échec temporaire dans la résolution du nom",
            "域名解析暂时失败",
            "名前解決に一時的に失敗しました",
            "Fallo temporal en la resolución del nombre",
            "Временный сбой в разрешении имен",
            "name resolution에서 일시적인 실패",
            "Falha temporário na resolução de nome",
        ],
    ),
    (
        "EAI_NONAME",
        &[
            "Name or service not known",
            "Name does not resolve",
            "Der Name oder der Dienst ist nicht bekannt",
            "Nom ou service inconnu",
            "未知的名称或服务",
            "名前またはサービスが不明です",
            "Nombre o servicio desconocido",
            "Неизвестное имя или служба",
            "이름 혹은 서비스를 알 수 없습니다",
            "Nome ou serviço desconhecido",
        ],
    ),
    (
        "EAI_FAIL",
        &[
            "Non-recoverable failure in name resolution",
            "Nicht-behebbarer Fehler in der Namensauflösung",
            "Échec non récupérable lors de la résolution du nom",
            "域名解析中出现不可修复的失败",
            "名前解決で回復できない失敗が発生しました",
            "Fallo irrecuperable en la resolución del nombre",
            "Неисправимая ошибка в разрешении имен",
            "name resolution에서 복구할 수 없는 실패",
            "Falha irrecuperável na resolução de nome",
        ],
    ),
    ("EAGAIN", &["Resource temporarily unavailable"]),
    ("EMFILE", &["Too many open files"]),
    ("EFBIG", &["File too large"]),
    ("ENOSPC", &["No space left on device"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn errnos(line: &str) -> Vec<&'static str> {
        signs(line.as_bytes())
            .filter_map(|found| match found.sign {
                Sign::Errno(name) | Sign::Symbol(name) => Some(name),
                Sign::Wording => None,
            })
            .collect()
    }

    #[test]
    fn one_errno_is_found_in_every_language_and_spelling() {
        for line in [
            "touch: cannot touch 'x': Read-only file system",
            "open x: read-only file system",
            "touch: 'x' kann nicht berührt werden: Das Dateisystem ist nur lesbar",
            "touch: 'x' : Système de fichiers accessible en lecture seulement",
            "touch: 无法 touch 'x': 只读文件系统",
            "touch: 'x' に touch できません: 読み込み専用ファイルシステムです",
            "rm: no se puede borrar 'x': Sistema de ficheros de sólo lectura",
            "rm: невозможно удалить 'x': Файловая система доступна только для чтения",
            "rm: 'x'을(를) 제거할 수 없습니다: 읽기전용 파일 시스템",
            "rm: não foi possível remover 'x': Sistema de arquivos somente para leitura",
            "  code: 'EROFS',",
        ] {
            assert_eq!(errnos(line), ["EROFS"], "{line}");
        }
    }

    #[test]
    fn a_longer_phrase_is_not_read_as_a_shorter_one() {
        assert_eq!(errnos("a: Name or service not known"), ["EAI_NONAME"]);
        assert_eq!(errnos("nothing of the kind"), Vec::<&str>::new());
    }

    #[test]
    fn a_symbol_inside_of_another_word_is_none() {
        assert_eq!(errnos("FileNotFoundError: x"), Vec::<&str>::new());
        assert_eq!(errnos("getaddrinfo ENOTFOUND x"), ["EAI_NONAME"]);
        assert_eq!(errnos("MY_EROFS_FLAG"), Vec::<&str>::new());
    }
}
